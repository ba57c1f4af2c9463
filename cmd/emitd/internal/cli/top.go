package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/emitd/emitd/cmd/emitd/internal/terminal"
	"github.com/emitd/emitd/cmd/emitd/internal/top"
	"github.com/emitd/emitd/internal/admin/fault"
	"github.com/emitd/emitd/internal/admin/view"
)

func (a *app) topCommand() *cobra.Command {
	var every, limit time.Duration
	q := &queues{a: a}
	cmd := &cobra.Command{
		Use: "top", Short: "Show the cluster live: leader, problems, nodes, daemons, queues, outbox",
		Long: "Show the cluster live on a terminal: who leads and how long the lease still holds, what needs attention, nodes\n" +
			"with their load, daemons with the states of their units, queues with their rates, and how fast the backlog of\n" +
			"each subscription of the outbox grows.\n\n" +
			"Keys: q ends it. p pauses it: the cluster is not read until p is pressed again. Tab goes to the next table, whose\n" +
			"name is in brackets; left and right choose the column that orders it, r reverses the order, up, down, page up,\n" +
			"page down, home and end scroll it. Without a chosen column, rows with problems come first.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			a.endProgress()
			if err := checkInterval(every); err != nil {
				return err
			}
			return a.top(cmd.Context(), every, func(ctx context.Context) (view.Status, error) { return a.readStatus(ctx, q, limit) })
		},
	}
	cmd.Flags().DurationVar(&every, "interval", watchEvery, "time between two reads")
	maxWaitFlag(cmd, &limit)
	q.flags(cmd.Flags())
	return cmd
}

// top takes over the terminal until a key ends it. What is written to standard error meanwhile appears afterwards.
func (a *app) top(ctx context.Context, every time.Duration, read func(context.Context) (view.Status, error)) (err error) {
	if _, err := a.loadToRead(); err != nil { // a mistake is shown before the terminal is taken over
		return err
	}
	if a.dumb() {
		return noTerminal(terminal.ErrNone)
	}
	out, stderr, printed := a.Out, a.Err, new(talk)
	screen, err := terminal.TakeOver(a.In, out)
	if err != nil {
		return noTerminal(err)
	}
	restore := sync.OnceValue(screen.Restore)
	defer func() { err = errors.Join(err, restore()) }() // after a panic, too
	kept := new(keptStore)
	a.Err, a.kept = printed, kept
	resized, stop := terminal.Resizes()
	defer stop()
	done := make(chan struct{})
	defer close(done)
	l := &topLoop{
		model: top.New(every), every: every, resized: resized,
		read: func(ctx context.Context) (view.Status, error) {
			a.began = time.Now()
			s, err := read(ctx)
			if err != nil {
				kept.close()
				return s, a.asFault(err)
			}
			return s, nil
		},
		oneLine: a.oneLine,
		keys:    terminal.ReadKeys(a.In, done),
		size:    func() terminal.Size { return sizeOr80x24(terminal.SizeOf(out)) },
		painter: terminal.Painter{Out: out, Whole: true, Colours: !a.noColor && a.environ("NO_COLOR") == ""},
	}
	err = errors.Join(l.run(ctx), restore())
	if l.idle(a.timeout) {
		kept.close()
		a.Err, a.kept = stderr, nil
	}
	_, _ = io.WriteString(stderr, printed.take())
	return err
}

func noTerminal(err error) error {
	return fault.New(fault.Usage, "emitd top needs a terminal: %w", err).
		Hint("emitd status --watch follows the cluster without one")
}

// sizeOr80x24 replaces a size that the terminal does not know, as serial lines do not.
func sizeOr80x24(s terminal.Size) terminal.Size {
	if !s.Known() {
		return terminal.Size{Columns: 80, Rows: 24}
	}
	return s
}

// topLoop draws the model until a key or ctx ends it.
type topLoop struct {
	model   *top.Model
	every   time.Duration
	read    func(context.Context) (view.Status, error)
	oneLine func(error) string
	keys    <-chan terminal.Key
	resized <-chan os.Signal
	size    func() terminal.Size
	painter terminal.Painter

	answers chan answer
	reading bool
}

// answer is the result of a read.
type answer struct {
	status view.Status
	err    error
	broken string // a panic of the read, with its stack
}

// run runs until a key, the end of the keys or ctx ends it. One read is under way at most, and keys are served
// meanwhile. In the end a read may still be under way: see idle.
func (l *topLoop) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	l.answers = make(chan answer, 1)
	again := time.NewTicker(l.every)
	defer again.Stop()
	clock := time.NewTicker(time.Second) // the age of what is shown grows
	defer clock.Stop()
	l.refresh(ctx)
	for {
		size := l.size()
		if err := l.painter.Paint(l.model.Frame(time.Now(), size), size); err != nil {
			return fmt.Errorf("draw on the terminal: %w", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case key, ok := <-l.keys:
			paused := l.model.Paused()
			if !ok || l.model.Press(key) {
				return nil
			}
			if paused && !l.model.Paused() {
				l.refresh(ctx)
			}
		case <-l.resized:
		case <-clock.C:
		case <-again.C:
			l.refresh(ctx)
		case got := <-l.answers:
			l.reading = false
			if err := l.take(got); err != nil {
				return err
			}
		}
	}
}

// refresh begins a read.
func (l *topLoop) refresh(ctx context.Context) {
	if !l.reading && !l.model.Paused() {
		l.reading = true
		go l.answer(ctx)
	}
}

// answer reads once. A panic becomes part of the answer, because only the goroutine that draws can give the terminal
// back first.
func (l *topLoop) answer(ctx context.Context) {
	var got answer
	defer func() {
		if p := recover(); p != nil {
			got.broken = fmt.Sprintf("%v\n%s", p, debug.Stack())
		}
		l.answers <- got
	}()
	got.status, got.err = l.read(ctx)
}

// take gives the result of a read to the model. A mistake that no repetition corrects ends the loop.
func (l *topLoop) take(got answer) error {
	switch {
	case got.broken != "":
		panic(got.broken)
	case got.err == nil:
		l.model.Read(got.status, time.Now())
	case fault.Exit(got.err) == fault.ExitUsage:
		return got.err
	default:
		l.model.Fail(l.oneLine(got.err))
	}
	return nil
}

// idle waits until no read is under way. It reports false if that takes too long, because a read ignores its context.
func (l *topLoop) idle(limit time.Duration) bool {
	if !l.reading {
		return true
	}
	select {
	case <-l.answers:
		l.reading = false
		return true
	case <-time.After(limit):
		return false
	}
}
