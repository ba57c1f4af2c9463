package terminal

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// Progress shows on a line of a terminal that a program works, what it does and for how long, once it has taken a
// second. The line disappears before anything else is written to the terminal by a writer that Progress has wrapped.
// A nil Progress shows nothing.
type Progress struct {
	out io.Writer

	mu     sync.Mutex
	text   string
	begun  time.Time
	shown  bool
	paused bool
	over   bool          // End was called
	done   chan struct{} // closed by End
	ended  chan struct{} // closed when nothing is shown any more
}

// progressEvery is how often the line changes.
const progressEvery = time.Second

// StartProgress begins to show a text.
func StartProgress(out io.Writer, text string) *Progress {
	p := &Progress{out: out, text: text, begun: time.Now(), done: make(chan struct{}), ended: make(chan struct{})}
	go p.run()
	return p
}

func (p *Progress) run() {
	defer close(p.ended)
	tick := time.NewTicker(progressEvery)
	defer tick.Stop()
	for {
		select {
		case <-p.done:
			return
		case <-tick.C:
			p.show()
		}
	}
}

func (p *Progress) show() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.paused || p.over {
		return
	}
	line := fmt.Sprintf("%s… %v", p.text, time.Since(p.begun).Truncate(time.Second))
	_, _ = io.WriteString(p.out, "\r"+clip(line, max(SizeOf(p.out).Columns-1, 0))+toLineEnd)
	p.shown = true
}

// Step changes the text.
func (p *Progress) Step(text string) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.text = text
}

// Pause hides the line until Resume, while the program waits for its user.
func (p *Progress) Pause() { p.pause(true) }

// Resume shows the line again.
func (p *Progress) Resume() { p.pause(false) }

func (p *Progress) pause(paused bool) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hide()
	p.paused = paused
}

// hide removes the line.
func (p *Progress) hide() {
	if p.shown {
		_, _ = io.WriteString(p.out, "\r"+toLineEnd)
		p.shown = false
	}
}

// End removes the line for good. Only the first call has an effect.
func (p *Progress) End() {
	if p == nil {
		return
	}
	p.mu.Lock()
	p.hide()
	if !p.over {
		p.over = true
		close(p.done)
	}
	p.mu.Unlock()
	<-p.ended
}

// Wrap returns a writer to a stream of the same terminal. It has the descriptor of the stream, if that has one.
func (p *Progress) Wrap(stream io.Writer) io.Writer {
	w := behind{p, stream}
	if f, ok := stream.(descriptor); ok {
		return behindTerminal{w, f}
	}
	return w
}

// behind writes after the line has been removed.
type behind struct {
	p   *Progress
	out io.Writer
}

// Write implements io.Writer.
func (b behind) Write(text []byte) (int, error) {
	b.p.mu.Lock()
	defer b.p.mu.Unlock()
	b.p.hide()
	return b.out.Write(text)
}

// behindTerminal is behind for a stream with a descriptor.
type behindTerminal struct {
	behind
	descriptor
}
