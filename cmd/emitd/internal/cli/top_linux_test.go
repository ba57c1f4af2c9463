package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/emitd/emitd/internal/admin/fault"
	"github.com/emitd/emitd/internal/admin/view"
)

// pty is a terminal with a program on one side and a test on the other.
type pty struct {
	t    *testing.T
	user *os.File // the test's side
	tty  *os.File // the program's side

	mu      sync.Mutex
	printed bytes.Buffer
	spoken  chan struct{} // receives when there is more
}

func newPTY(t *testing.T, size unix.Winsize) *pty {
	t.Helper()
	user, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Fatalf("this test needs pseudo-terminals; mount devpts with ptmxmode=666 on /dev/pts: %v", err)
	}
	t.Cleanup(func() { user.Close() })
	n, err := unix.IoctlGetInt(int(user.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(user.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	tty, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tty.Close() })
	if err := unix.IoctlSetWinsize(int(tty.Fd()), unix.TIOCSWINSZ, &size); err != nil {
		t.Fatal(err)
	}
	p := &pty{t: t, user: user, tty: tty, spoken: make(chan struct{}, 1)}
	go func() {
		b := make([]byte, 4096)
		for {
			n, err := user.Read(b)
			p.mu.Lock()
			p.printed.Write(b[:n])
			p.mu.Unlock()
			select {
			case p.spoken <- struct{}{}:
			default:
			}
			if err != nil {
				return
			}
		}
	}()
	return p
}

// awaits waits until the program has written something that matches since the last call, and forgets it.
func (p *pty) awaits(pattern string) {
	p.t.Helper()
	re := regexp.MustCompile(pattern)
	bound := time.After(time.Minute)
	for {
		p.mu.Lock()
		text := p.printed.String()
		at := re.FindStringIndex(text)
		if at != nil {
			p.printed.Reset()
			p.printed.WriteString(text[at[1]:])
		}
		p.mu.Unlock()
		if at != nil {
			return
		}
		select {
		case <-p.spoken:
		case <-bound:
			p.t.Fatalf("after a minute still no %s in %q", pattern, text)
		}
	}
}

func (p *pty) types(keys string) {
	if _, err := p.user.WriteString(keys); err != nil {
		p.t.Fatal(err)
	}
}

func (p *pty) mode() unix.Termios {
	p.t.Helper()
	m, err := unix.IoctlGetTermios(int(p.tty.Fd()), unix.TCGETS)
	if err != nil {
		p.t.Fatal(err)
	}
	return *m
}

// TestTopOnTerminal plays a user of emitd top on a pseudo-terminal: it shows the cluster, takes keys, follows the
// size of the terminal, and gives the terminal back.
func TestTopOnTerminal(t *testing.T) {
	t.Parallel()
	store := "sqlite://" + filepath.Join(t.TempDir(), "cluster.db")
	run := func(ctx context.Context, s Streams, args ...string) int {
		return Main(ctx, append(args, "--store", store), s)
	}
	var migrated bytes.Buffer
	if code := run(t.Context(), Streams{Out: &migrated, Err: &migrated}, "migrate", "up"); code != 0 {
		t.Fatalf("exit code %d: %s", code, migrated.String())
	}
	p := newPTY(t, unix.Winsize{Col: 60, Row: 20})
	before := p.mode()
	code := make(chan int, 1)
	go func() {
		code <- run(t.Context(), Streams{In: p.tty, Out: p.tty, Err: p.tty, Environ: []string{"NO_COLOR=1"}}, "top", "--interval", "100ms")
	}()
	p.awaits(`^\x1b\[\?1049h\x1b\[\?25l`)
	p.awaits(`emitd top   cluster .*\n(.*\n)*.*LEADER nobody`)
	p.awaits(`! no node is registered in this store`)
	p.awaits(`\[NODES\] 0`)
	p.types("p")
	p.awaits(`PAUSED`)
	p.types("\t")
	p.awaits(`\[DAEMONS\] 0`)
	if err := unix.IoctlSetWinsize(int(p.tty.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Col: 100, Row: 30}); err != nil {
		t.Fatal(err)
	}
	p.awaits(`\x1b\[H\x1b\[2Jemitd top`)
	p.types("q")
	if got := <-code; got != 0 {
		t.Errorf("exit code %d", got)
	}
	p.awaits(`\x1b\[\?25h\x1b\[\?1049l$`)
	if p.mode() != before {
		t.Error("the terminal has another mode than before")
	}
}

// TestTopPanics checks that a panic, an interrupt and a mistake give the terminal back.
func TestTopPanics(t *testing.T) {
	t.Parallel()
	mistake := fault.New(fault.BadValue, "no good")
	for name, tt := range map[string]struct {
		read func() (view.Status, error)
		keys string
		want error
	}{
		"a panic":      {func() (view.Status, error) { panic("planted") }, "", errors.New("planted")},
		"an interrupt": {func() (view.Status, error) { return view.Status{}, nil }, "\x03", nil},
		"a mistake":    {func() (view.Status, error) { return view.Status{}, mistake }, "", mistake},
		"an outage":    {func() (view.Status, error) { return view.Status{}, fault.New(fault.Unreachable, "away") }, "q", nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPTY(t, unix.Winsize{})
			before := p.mode()
			a := &app{Streams: Streams{In: p.tty, Out: p.tty, Err: p.tty}, timeout: time.Minute}
			_ = a.root()
			a.flags["store"].text, a.flags["store"].given = "sqlite:///nowhere", true
			ended := make(chan error, 1)
			go func() {
				var err error
				defer func() {
					if got := recover(); got != nil {
						err = errors.New("planted")
						if !strings.Contains(fmt.Sprint(got), "planted") {
							t.Errorf("panic: %v", got)
						}
					}
					ended <- err
				}()
				err = a.top(t.Context(), time.Minute, func(context.Context) (view.Status, error) { return tt.read() })
			}()
			p.awaits(`\x1b\[\?1049h`)
			p.types(tt.keys)
			if err := <-ended; fmt.Sprint(err) != fmt.Sprint(tt.want) {
				t.Errorf("ended with %v, want %v", err, tt.want)
			}
			p.awaits(`\x1b\[\?25h\x1b\[\?1049l`)
			if p.mode() != before {
				t.Error("the terminal has another mode than before")
			}
		})
	}
}

// TestTopNeedsTerminal checks what is said elsewhere.
func TestTopNeedsTerminal(t *testing.T) {
	t.Parallel()
	var out, talk bytes.Buffer
	code := Main(t.Context(), []string{"top", "--store", "sqlite:///nowhere"}, Streams{In: strings.NewReader("q"), Out: &out, Err: &talk})
	if code != fault.ExitUsage || out.Len() > 0 || !strings.Contains(talk.String(), "emitd top needs a terminal") {
		t.Errorf("exit code %d, output %q, %q", code, out.String(), talk.String())
	}
}
