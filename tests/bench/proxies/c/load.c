// Clients that ask again as soon as they are answered: load PORT CONNECTIONS SECONDS < request
// Prints JSON: how many were answered whole with 200, what else there was, times, reads with data.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define HELD 262144
#define MOST_TIMES 4000000

struct client { int fd; char *held; int size; double asked; int first; int waits; };
static char request[65536];
static int request_size;
static float *times, *firsts;
static long answered, refused, broken, reads, begun_answers;

static double now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec + at.tv_nsec / 1e9;
}

static int dial(int port, int poll, struct client *it) {
    int one = 1;
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    it->fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(it->fd, (void *)&at, sizeof at)) return 0;
    setsockopt(it->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    struct epoll_event told = {.events = EPOLLIN, .data.ptr = it};
    epoll_ctl(poll, EPOLL_CTL_ADD, it->fd, &told);
    return 1;
}

static void ask(struct client *it) {
    it->size = it->first = 0;
    it->waits = 1;
    it->asked = now();
    if (send(it->fd, request, request_size, MSG_NOSIGNAL) != request_size) shutdown(it->fd, SHUT_RDWR);
}

// Whether the answer is there, whole.
static int is_whole(struct client *it) {
    it->held[it->size] = 0;
    char *end = strstr(it->held, "\r\n\r\n");
    if (!end) return 0;
    char *length = strcasestr(it->held, "\r\ncontent-length:");
    if (length && length < end) return it->size >= end + 4 - it->held + atoi(length + 17);
    // The head may end so too: in an id, say.
    return it->held + it->size > end + 8 && memcmp(it->held + it->size - 5, "0\r\n\r\n", 5) == 0;
}

static int by_time(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return x < y ? -1 : x > y;
}

static double part(float *of, long many, double which) {
    return many ? of[(long)(many * which)] * 1000 : 0;
}

int main(int count, char **words) {
    if (count != 4) return 2;
    int port = atoi(words[1]), connections = atoi(words[2]), poll = epoll_create1(0);
    double seconds = atof(words[3]);
    request_size = fread(request, 1, sizeof request, stdin);
    times = calloc(MOST_TIMES, sizeof *times);
    firsts = calloc(MOST_TIMES, sizeof *firsts);
    struct client *clients = calloc(connections, sizeof *clients);
    struct epoll_event events[512];
    double start = now(), until = start + seconds;
    int begun = 0, waiting = 0;
    for (int n = 0; n < connections; n++) clients[n].held = malloc(HELD + 1);
    while (begun < connections || waiting) {
        double at = now();
        // Not all at once: nobody's clients are in step.
        while (begun < connections && at >= start + 0.8 * seconds / 4 * begun / connections) {
            if (!dial(port, poll, &clients[begun])) { broken++; return 1; }
            ask(&clients[begun++]);
            waiting++;
        }
        if (at > until + 30) break;
        int ready = epoll_wait(poll, events, 512, begun < connections ? 1 : 100);
        for (int n = 0; n < ready; n++) {
            struct client *it = events[n].data.ptr;
            ssize_t got = recv(it->fd, it->held + it->size, HELD - it->size, MSG_DONTWAIT);
            if (got <= 0) {
                close(it->fd);
                if (it->waits) { broken++; waiting--; it->waits = 0; }
                if (now() < until && dial(port, poll, it)) { ask(it); waiting++; }
                continue;
            }
            reads++;
            if (!it->first) {
                it->first = 1;
                if (begun_answers < MOST_TIMES) firsts[begun_answers++] = now() - it->asked;
            }
            it->size += got;
            if (!is_whole(it)) continue;
            it->waits = 0;
            if (strncmp(it->held + 9, "200", 3)) refused++;
            else {
                if (answered < MOST_TIMES) times[answered] = now() - it->asked;
                answered++;
            }
            if (now() < until) ask(it);
            else waiting--;
        }
    }
    double took = now() - start;
    long kept = answered < MOST_TIMES ? answered : MOST_TIMES;
    qsort(times, kept, sizeof *times, by_time);
    qsort(firsts, begun_answers, sizeof *firsts, by_time);
    printf("{\"answered\":%ld,\"refused\":%ld,\"broken\":%ld,\"seconds\":%.3f,\"reads\":%ld,\"p50_ms\":%.3f,"
           "\"p99_ms\":%.3f,\"first_p50_ms\":%.3f}\n",
           answered, refused, broken, took, reads, part(times, kept, 0.5), part(times, kept, 0.99),
           part(firsts, begun_answers, 0.5));
    return 0;
}
