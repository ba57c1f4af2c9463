//go:build linux || darwin

package exec

import "golang.org/x/sys/unix"

// rights returns the descriptors in a control message.
func rights(oob []byte) []int {
	var out []int
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil
	}
	for i := range messages {
		if fds, err := unix.ParseUnixRights(&messages[i]); err == nil {
			out = append(out, fds...)
		}
	}
	return out
}
