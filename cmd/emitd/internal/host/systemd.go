package host

import (
	"context"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"
)

// notifyEvery is how often the status is checked for changes.
const notifyEvery = time.Second

// notifySystemd notifies the service manager, if there is one (NOTIFY_SOCKET): READY when every node has
// written its first heartbeat, STATUS when it changes, WATCHDOG while every node makes progress
// (WATCHDOG_USEC), STOPPING when ctx ends. It returns when done is closed.
func (h *host) notifySystemd(ctx context.Context, done <-chan struct{}) error {
	conn, err := dialSystemd()
	if conn == nil {
		return err
	}
	defer conn.Close()
	n := &notifier{h: h, send: func(state string) { _, _ = conn.Write([]byte(state)) }, watchdog: watchdog()}
	tick := time.NewTicker(notifyEvery)
	defer tick.Stop()
	ending := ctx.Done()
	stopping := func() {
		ending = nil
		n.send("STOPPING=1\nSTATUS=draining")
	}
	for {
		select {
		case <-done:
			if ending != nil { // a node that stops immediately ends both at once
				stopping()
			}
			return nil
		case <-ending:
			stopping()
		case <-tick.C:
			n.notifyChanges()
		}
	}
}

// dialSystemd connects to the service manager; nil if there is none.
func dialSystemd() (net.Conn, error) {
	name := os.Getenv("NOTIFY_SOCKET")
	if name == "" {
		return nil, nil
	}
	if strings.HasPrefix(name, "@") {
		name = "\x00" + name[1:]
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		return nil, fmt.Errorf("NOTIFY_SOCKET: %w", err)
	}
	return conn, nil
}

// startingLonger extends the start timeout while the store cannot be reached. Otherwise the service
// manager would end the service (TimeoutStartSec), and the next process would wait for the same store. It
// is sent with each attempt, much more often than every two minutes.
const startingLonger = "STATUS=waiting for the cluster store\nEXTEND_TIMEOUT_USEC=120000000"

// notifySystemdOnce sends one message to the service manager, if there is one.
func (h *host) notifySystemdOnce(state string) {
	conn, err := dialSystemd()
	if err != nil {
		h.log.Debug("cannot notify systemd", "error", err)
	}
	if conn == nil {
		return
	}
	defer conn.Close()
	_, _ = conn.Write([]byte(state))
}

// watchdog reports whether the service manager's watchdog is on for this process.
func watchdog() bool {
	usec, err := strconv.ParseInt(os.Getenv("WATCHDOG_USEC"), 10, 64)
	pid := os.Getenv("WATCHDOG_PID")
	return err == nil && usec > 0 && (pid == "" || pid == strconv.Itoa(os.Getpid()))
}

type notifier struct {
	h        *host
	send     func(state string)
	watchdog bool
	ready    bool
	status   string
}

// notifyChanges sends what has changed.
func (n *notifier) notifyChanges() {
	if !n.ready && n.h.every(passed) {
		n.ready = true
		n.send("READY=1")
	}
	if n.watchdog && n.h.live() {
		n.send("WATCHDOG=1")
	}
	if s := n.h.status(); s != n.status {
		n.status = s
		n.send("STATUS=" + s)
	}
}

func passed(checks map[string]error) bool {
	for _, err := range checks {
		if err != nil {
			return false
		}
	}
	return true
}

// every reports whether holds is true for the Started checks of every node.
func (h *host) every(holds func(map[string]error) bool) bool {
	for _, c := range h.up.Nodes {
		if !holds(c.Started()) {
			return false
		}
	}
	return true
}

func (h *host) live() bool {
	for _, c := range h.up.Nodes {
		if !passed(c.Live()) {
			return false
		}
	}
	return true
}

// status returns a text such as "leader term 42, 3 daemons".
func (h *host) status() string {
	var out []string
	for _, c := range h.up.Nodes {
		s := c.Status()
		role := "follower"
		switch {
		case s.Stopping:
			role = "draining"
		case s.Leading:
			role = "leader"
		case !s.Registered:
			role = "joining"
		}
		out = append(out, fmt.Sprintf("%s term %d, %d daemons", role, s.Term.Ordinal, len(s.Runs)))
	}
	return strings.Join(out, "; ")
}
