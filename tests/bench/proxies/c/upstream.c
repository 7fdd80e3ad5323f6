// An engine that costs next to nothing: one answer to any POST, or CHUNKS events, one every PAUSE ms.
// upstream PAUSE_MS CHUNKS: prints its port, serves until killed. A body that holds `"stream": true` gets events.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#define MOST 65536
#define HELD 65536

struct connection { char *held; int size; int left; };
static struct connection connections[MOST];
static char answer[4096], event[512];
static int answer_size, event_size, chunks;
static const char *HEAD = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
static const char *LAST = "e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n";

static void say(int fd, const char *text, int size) {
    // Loopback takes these whole: they are far smaller than a socket's buffer.
    if (send(fd, text, size, MSG_NOSIGNAL) != size) shutdown(fd, SHUT_RDWR);
}

static void fill(void) {
    char body[2048], text[800];
    memset(text, 'y', 750);
    text[750] = 0;
    int size = snprintf(body, sizeof body,
        "{\"id\":\"c-1\",\"object\":\"chat.completion\",\"created\":1,\"model\":\"bench\",\"choices\":[{\"index\":0,"
        "\"message\":{\"role\":\"assistant\",\"content\":\"%s\"}}],\"usage\":{\"prompt_tokens\":300,"
        "\"completion_tokens\":100,\"total_tokens\":400}}", text);
    answer_size = snprintf(answer, sizeof answer,
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s", size, body);
    size = snprintf(body, sizeof body,
        "data: {\"id\":\"c-1\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"bench\","
        "\"choices\":[{\"index\":0,\"delta\":{\"content\":\" word\"},\"finish_reason\":null}]}\n\n");
    event_size = snprintf(event, sizeof event, "%x\r\n%s\r\n", size, body);
}

static void read_requests(int fd) {
    struct connection *it = &connections[fd];
    for (;;) {
        ssize_t got = recv(fd, it->held + it->size, HELD - 1 - it->size, MSG_DONTWAIT);
        if (got == 0) { close(fd); free(it->held); memset(it, 0, sizeof *it); return; }
        if (got < 0) break;
        it->size += got;
    }
    for (;;) {
        it->held[it->size] = 0;
        char *end = strstr(it->held, "\r\n\r\n");
        if (!end) return;
        char *length = strcasestr(it->held, "\r\ncontent-length:");
        int body = length && length < end ? atoi(length + 17) : 0;
        int chunked = !length && strcasestr(it->held, "\r\ntransfer-encoding: chunked") != NULL;
        int whole = end + 4 - it->held + body;
        if (chunked) {
            char *last = strstr(end + 4, "\r\n0\r\n\r\n");
            if (!last) return;
            whole = last + 7 - it->held;
        }
        if (it->size < whole) return;
        char next = it->held[whole];
        it->held[whole] = 0;
        int stream = strstr(end, "\"stream\": true") || strstr(end, "\"stream\":true");
        it->held[whole] = next;
        memmove(it->held, it->held + whole, it->size - whole);
        it->size -= whole;
        if (stream) { say(fd, HEAD, strlen(HEAD)); say(fd, event, event_size); it->left = chunks - 1; }
        else say(fd, answer, answer_size);
    }
}

int main(int count, char **words) {
    if (count != 3) return 2;
    int pause_ms = atoi(words[1]), one = 1;
    chunks = atoi(words[2]);
    fill();
    int server = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof at;
    if (bind(server, (void *)&at, size) || listen(server, 4096)) return 1;
    getsockname(server, (void *)&at, &size);
    printf("%d\n", ntohs(at.sin_port));
    fflush(stdout);
    int clock = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK), poll = epoll_create1(0);
    struct itimerspec every = {{0, pause_ms * 1000000L}, {0, pause_ms * 1000000L}};
    timerfd_settime(clock, 0, &every, NULL);
    struct epoll_event told = {.events = EPOLLIN, .data.fd = server}, events[512];
    epoll_ctl(poll, EPOLL_CTL_ADD, server, &told);
    told.data.fd = clock;
    epoll_ctl(poll, EPOLL_CTL_ADD, clock, &told);
    int highest = 0;
    for (;;) {
        int ready = epoll_wait(poll, events, 512, -1);
        for (int n = 0; n < ready; n++) {
            int fd = events[n].data.fd;
            if (fd == server) {
                int client = accept(server, NULL, NULL);
                if (client < 0 || client >= MOST) { if (client >= 0) close(client); continue; }
                setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
                connections[client] = (struct connection){.held = malloc(HELD)};
                told.data.fd = client;
                epoll_ctl(poll, EPOLL_CTL_ADD, client, &told);
                if (client > highest) highest = client;
            } else if (fd == clock) {
                unsigned long long beats;
                if (read(clock, &beats, sizeof beats) < 0) continue;
                for (int client = 0; client <= highest; client++) {
                    struct connection *it = &connections[client];
                    if (it->left == 0) continue;
                    if (--it->left) say(client, event, event_size);
                    else say(client, LAST, strlen(LAST));
                }
            } else read_requests(fd);
        }
    }
}
