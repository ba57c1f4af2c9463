package terminal

import (
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// lockedText collects what several goroutines write.
type lockedText struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *lockedText) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

// take returns the text so far and forgets it.
func (l *lockedText) take() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.b.Reset()
	return l.b.String()
}

// TestProgress checks when the line is there, and that it is gone whenever something else is written.
func TestProgress(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out lockedText
		p := StartProgress(&out, "emitd x")
		w := p.Wrap(&out)
		expect := func(after time.Duration, want string) {
			t.Helper()
			time.Sleep(after)
			synctest.Wait()
			if got := strings.ReplaceAll(out.take(), "\x1b[K", "K"); got != want {
				t.Errorf("%q, want %q", got, want)
			}
		}
		write := func(text string) {
			if n, err := w.Write([]byte(text)); n != len(text) || err != nil {
				t.Errorf("%d, %v", n, err)
			}
		}
		write("at once\n")
		expect(999*time.Millisecond, "at once\n")
		expect(2*time.Millisecond, "\remitd x… 1sK")
		p.Step("step two")
		expect(time.Second, "\rstep two… 2sK")
		write("a line\n")
		expect(0, "\rKa line\n")
		write("another\n")
		expect(0, "another\n")
		expect(time.Second, "\rstep two… 3sK")
		p.Pause()
		expect(5*time.Second, "\rK")
		p.Resume()
		expect(time.Second, "\rstep two… 9sK")
		p.End()
		p.End()
		write("the end\n")
		expect(time.Minute, "\rKthe end\n")
		var none *Progress
		none.Step("x")
		none.Pause()
		none.Resume()
		none.End()
	})
}
