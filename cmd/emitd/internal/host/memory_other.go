//go:build !linux

package host

// cgroupMemory returns 0: there are no cgroups here.
func cgroupMemory() int64 { return 0 }
