"""Is a filesystem this machine's own or shared with others, and may it be touched without fear?"""

import re
from enum import StrEnum
from typing import Final


class Kind(StrEnum):
    """What a type of filesystem means for models."""

    LOCAL = "local"
    """This machine's own bytes, on its own disks: answers at once."""
    OWN = "own"
    """This machine's own bytes behind a program of somebody's, which may hang."""
    SHARED = "shared"
    """Other machines' bytes as well: a file server, a cluster, a bucket. May hang."""
    AUTOMOUNT = "automount"
    """Nothing yet: touching it mounts what belongs there, which may hang."""
    PSEUDO = "pseudo"
    """No bytes at all: the kernel's own tables."""


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_SHARED: Final = _names("""
    nfs nfs3 nfs4 cifs smb2 smb3 smbfs ncpfs lustre beegfs beegfs_nodev fhgfs gpfs ceph
    glusterfs 9p virtiofs afs openafs yfs auristorfs coda panfs wekafs weka pvfs2 orangefs gfs
    gfs2 ocfs2 ocfs2_dlmfs quobyte davfs mfs moosefs hgfs vmhgfs vboxsf prl_fs drvfs
""")

_SHARED_FUSE: Final = _names("""
    sshfs s3fs s3fs-fuse juicefs glusterfs ceph ceph-fuse cephfs rclone gcsfuse goofys geesefs
    tigrisfs mountpoint-s3 mount-s3 s3ql s3backer blobfuse blobfuse2 ossfs ossfs2 cosfs obsfs
    objectivefs cunofs mfs moosefs mfsmount lizardfs saunafs seaweedfs weed alluxio alluxio-fuse
    cvmfs cvmfs2 davfs davfs2 curlftpfs fuse_dfs hdfs hadoop-fuse-dfs xtreemfs quobyte orangefs
    pvfs2fuse beegfs eosxd xrootdfs fuse-nfs smbnetfs gvfsd-fuse google-drive-ocamlfuse
    vmhgfs-fuse curvefs cubefs chubaofs
""")

_OWN_FUSE: Final = _names("""
    ntfs-3g ntfs exfat exfat-fuse ext2 ext4 fuse2fs fuse-ext2 zfs zfs-fuse apfs bindfs mergerfs
    unionfs unionfs-fuse mhddfs fuse-overlayfs lxcfs squashfuse squashfuse_ll snapfuse
    archivemount encfs gocryptfs cryfs securefs veracrypt btfs dislocker-fuse dwarfs fuseiso
    rar2fs ratarmount
""")

_LOCAL: Final = _names("""
    ext2 ext3 ext4 ext4dev xfs btrfs zfs bcachefs f2fs jfs jfs2 reiserfs reiser4 nilfs2 ntfs3
    ntfs exfat vfat msdos fat hfsplus ufs minix udf iso9660 squashfs erofs cramfs romfs tmpfs
    ramfs rootfs overlay overlayfs aufs ubifs jffs2 apfs zonefs unionfs ecryptfs shiftfs
    devtmpfs hugetlbfs
""")

_PSEUDO: Final = _names("""
    proc sysfs cgroup cgroup2 cpuset devpts mqueue debugfs tracefs securityfs selinuxfs smackfs
    apparmorfs configfs pstore efivarfs bpf fusectl binfmt_misc rpc_pipefs nfsd nsfs pipefs
    sockfs usbfs functionfs resctrl bdev anon_inodefs fuse.lxcfs fuse.portal
""")

_NETWORK_SOURCE: Final = re.compile(r"//|\\\\|[^/]+:|[^/]+@[^/]+")

_BY_TYPE: Final = {
    "autofs": Kind.AUTOMOUNT,
    "fuseblk": Kind.OWN,
    **dict.fromkeys(_LOCAL, Kind.LOCAL),
    **dict.fromkeys(_SHARED, Kind.SHARED),
    **{f"fuse.{program}": Kind.OWN for program in _OWN_FUSE},
    **{f"fuse.{program}": Kind.SHARED for program in _SHARED_FUSE},
    **dict.fromkeys(_PSEUDO, Kind.PSEUDO),
}


def kind_of(type_: str, source: str) -> Kind:
    """What a mount of this type and source is.

    What nobody has heard of is judged by its source: `host:/path` and `//host/share` are shared,
    `/dev/sda1` is local, and an unknown FUSE is shared, since no room is claimed on what is.
    """
    known = _BY_TYPE.get(type_)
    if known is not None:
        return known
    on_a_disk = source.startswith("/dev/") and source != "/dev/fuse"
    if type_ == "fuse" or type_.startswith("fuse."):
        return Kind.OWN if on_a_disk else Kind.SHARED
    # Of a type unknown here nobody knows whether it hangs.
    return Kind.SHARED if _NETWORK_SOURCE.match(source) else Kind.OWN


def may_hang(kind: Kind) -> bool:
    """Whether asking it anything may take for ever."""
    return kind in {Kind.OWN, Kind.SHARED, Kind.AUTOMOUNT}
