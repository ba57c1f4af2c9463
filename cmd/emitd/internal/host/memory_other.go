//go:build !linux

package host

// cgroupMemory returns 0, because this system has no cgroups.
func cgroupMemory() int64 { return 0 }
