//go:build unix

package sqlite

import (
	"fmt"
	"os"
	"syscall"
)

// place identifies where a file is: device and inode.
func place(_ string, info os.FileInfo) string {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return ""
	}
	return fmt.Sprintf("%d.%d", st.Dev, st.Ino)
}
