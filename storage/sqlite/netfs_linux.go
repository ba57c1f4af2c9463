package sqlite

import "golang.org/x/sys/unix"

// networkFS names the network file system that a directory is on, as far as it can be recognised;
// "" for any other.
func networkFS(dir string) string {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return ""
	}
	return networkMagic(int64(st.Type)) //nolint:unconvert // another width on other architectures
}

// networkMagic names the network file systems among the kernel's magic numbers.
func networkMagic(magic int64) string {
	switch magic & 0xffffffff {
	case unix.NFS_SUPER_MAGIC:
		return "NFS"
	case unix.SMB_SUPER_MAGIC, unix.CIFS_SUPER_MAGIC, unix.SMB2_SUPER_MAGIC:
		return "SMB"
	case unix.AFS_SUPER_MAGIC, unix.AFS_FS_MAGIC:
		return "AFS"
	case unix.CEPH_SUPER_MAGIC:
		return "CephFS"
	case unix.CODA_SUPER_MAGIC:
		return "Coda"
	case unix.V9FS_MAGIC:
		return "9P"
	}
	return ""
}
