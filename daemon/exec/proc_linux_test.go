package exec

import (
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestParseStat(t *testing.T) {
	t.Parallel()
	const rest = " 1 700 700 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 "
	for name, c := range map[string]struct {
		text string
		want process
		bad  bool
	}{
		"runs":                  {text: "700 (sleep) S" + rest + "1 0 5555 99", want: process{ppid: 1, pgid: 700, sid: 700, name: "sleep", start: "5555"}},
		"odd name":              {text: "700 (a) S 1 (b) ) R" + rest + "1 0 5555 99", want: process{ppid: 1, pgid: 700, sid: 700, name: "a) S 1 (b) ", start: "5555"}},
		"zombie":                {text: "700 (sleep) Z" + rest + "1 0 5555 99", want: process{ppid: 1, pgid: 700, sid: 700, name: "sleep", start: "5555", dead: true}},
		"its main thread ended": {text: "700 (sleep) Z" + rest + "10 0 5555 99", want: process{ppid: 1, pgid: 700, sid: 700, name: "sleep", start: "5555"}},
		"dead":                  {text: "700 (sleep) X" + rest + "0 0 5555 99", want: process{ppid: 1, pgid: 700, sid: 700, name: "sleep", start: "5555", dead: true}},
		"cut off":               {text: "700 (sleep) S 1 700", bad: true},
		"empty":                 {text: "", bad: true},
		"group is not a number": {text: "700 (sleep) S 1 x 700 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 5555 99", bad: true},
	} {
		if got, err := parseStat([]byte(c.text)); got != c.want || (err != nil) != c.bad {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	if p, err := lookup(os.Getpid()); err != nil || p.dead || p.start == "" {
		t.Errorf("this process is %+v, %v", p, err)
	}
}

func TestTheAlarm(t *testing.T) {
	t.Parallel()
	a, err := newAlarm()
	if err != nil {
		t.Fatal(err)
	}
	in := pipe(t)
	fds := []unix.PollFd{{Fd: int32(in.r.Fd()), Events: unix.POLLIN}}
	until := readClock() + instant(50*time.Millisecond)
	if err := a.wait(until, fds); err != nil || readClock() < until {
		t.Errorf("rang %v early (%v)", time.Duration(until-readClock()), err)
	}
	for _, past := range []instant{0, -5, until} {
		if err := a.wait(past, nil); err != nil {
			t.Error(err)
		}
	}
	if _, err := in.w.WriteString("x"); err != nil {
		t.Fatal(err)
	}
	if err := a.wait(never, fds); err != nil {
		t.Error(err)
	}
}

type pair struct{ r, w *os.File }

func pipe(t *testing.T) pair {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeAll(r, w) })
	return pair{r, w}
}
