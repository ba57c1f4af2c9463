package sqlite

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/emitd/emitd/internal/bootclock"
)

// thisHost uses the ID of the boot session and the clock that counts from the boot.
func thisHost() (*host, error) {
	id, err := unix.Sysctl("kern.bootsessionuuid")
	if err != nil {
		return nil, fmt.Errorf("read the boot id of the host: kern.bootsessionuuid: %w", err)
	}
	return &host{
		bootID:    id,
		wall:      time.Now,
		sinceBoot: bootclock.Now,
	}, nil
}
