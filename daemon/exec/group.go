//go:build linux || darwin

package exec

import (
	"log/slog"
	"os"
	"sync"
	"time"
)

// group is emitd's view of a command that the guardian runs.
type group struct {
	run     uint64 // the guardian's name for it
	log     *slog.Logger
	started chan struct{} // closed when the command runs; the fields below are set before
	pgid    int           // of the process group: its first process
	target  *target       // nil if the process had ended already

	exited chan struct{} // closed when the first process has ended and others have not
	gone   chan struct{} // closed when no process is left; the answer is set before
	last   answer        // the notice that ended the run: gone, failed or late

	stdout, stderr output
	pipes          []*os.File // the reading ends
	readers        sync.WaitGroup
}

// newGroup makes the pipes of a command's output and reads them. The guardian gets the other ends. record may be nil.
// lost is closed when the guardian has ended.
func newGroup(log *slog.Logger, record func(stream, text string, truncated bool), lost <-chan struct{}, progress func()) (g *group, theirs []*os.File, err error) {
	g = &group{log: log, started: make(chan struct{}), exited: make(chan struct{}), gone: make(chan struct{})}
	for range 2 {
		r, w, err := os.Pipe()
		if err != nil {
			closeAll(append(g.pipes, theirs...)...)
			return nil, nil, err
		}
		g.pipes, theirs = append(g.pipes, r), append(theirs, w)
	}
	for i, o := range []*output{&g.stdout, &g.stderr} {
		o.stream, o.progress, o.record = []string{"stdout", "stderr"}[i], progress, record
		g.readers.Go(func() {
			select { // wait for the PID, which each logged line contains
			case <-g.started:
			case <-g.gone:
			case <-lost:
			}
			o.log = log.With("pid", g.pgid, "stream", o.stream)
			o.drain(g.pipes[i])
		})
	}
	return g, theirs, nil
}

// begin handles the notice that the command runs.
func (g *group) begin(a answer) {
	g.pgid = a.PID
	if t, err := openTarget(a.PID, a.Begin); err == nil {
		g.target = t
	}
	close(g.started)
}

// end handles the notice that no process is left, or that the command was never started.
func (g *group) end(a answer) {
	g.last = a
	close(g.gone)
}

// outputGrace is how long output is still read from pipes that a process outside the run holds.
const outputGrace = 500 * time.Millisecond

// close reads the output to its end. It reports false if a process still holds it.
func (g *group) close() bool {
	end := time.Now().Add(outputGrace)
	for _, p := range g.pipes {
		_ = p.SetReadDeadline(end)
	}
	g.readers.Wait()
	closeAll(g.pipes...)
	if g.target != nil {
		g.target.close()
	}
	return !g.stdout.givenUp && !g.stderr.givenUp
}
