package sqlite

import (
	"fmt"
	"os"

	"golang.org/x/sys/windows"
)

// place identifies where a file is: volume and file index. Opening a file a second time is harmless
// on this system, because locks belong to the handle.
func place(path string, _ os.FileInfo) string {
	name, err := windows.UTF16PtrFromString(path)
	if err != nil {
		return ""
	}
	h, err := windows.CreateFile(name, 0, windows.FILE_SHARE_READ|windows.FILE_SHARE_WRITE|windows.FILE_SHARE_DELETE,
		nil, windows.OPEN_EXISTING, 0, 0)
	if err != nil {
		return ""
	}
	defer windows.CloseHandle(h)
	var info windows.ByHandleFileInformation
	if err := windows.GetFileInformationByHandle(h, &info); err != nil {
		return ""
	}
	return fmt.Sprintf("%x.%x%08x", info.VolumeSerialNumber, info.FileIndexHigh, info.FileIndexLow)
}
