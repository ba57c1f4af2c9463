package cli

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/emitd/emitd/cmd/emitd/internal/terminal"
	"github.com/emitd/emitd/internal/admin/fault"
	"github.com/emitd/emitd/internal/admin/view"
)

// The interval of --watch.
const (
	watchEvery   = 2 * time.Second
	shortestTick = 100 * time.Millisecond // less would be a load on the store, and nobody could read it
)

// watchFlags adds --watch to a read: it is repeated until it is interrupted, which is a success.
//
// On a terminal, tables are drawn over each other. Anything else is appended: tables below a line with the time,
// JSON as one document per line. A read that fails does not end a watch, because whoever watches wants to see
// what happens next: see [watch.ends].
func (a *app) watchFlags(cmd *cobra.Command) *cobra.Command {
	var on bool
	var every time.Duration
	cmd.Flags().BoolVarP(&on, "watch", "w", false, "repeat until interrupted; JSON is one document per line")
	cmd.Flags().DurationVar(&every, "interval", watchEvery, "time between two reads of --watch")
	read := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		switch {
		case !on && cmd.Flags().Changed("interval"):
			return fault.New(fault.Usage, "--interval is the interval of --watch, which is not given")
		case !on:
			return read(cmd, args)
		}
		if err := checkInterval(every); err != nil {
			return err
		}
		a.endProgress()
		w := &watch{app: a, every: every, title: cmd.CommandPath(), painter: terminal.Painter{Out: a.Out}}
		if out := a.Out; terminal.IsTerminal(out) && terminal.SizeOf(out).Known() && !a.dumb() && view.Format(a.output).IsTable() {
			w.size = func() terminal.Size { return terminal.SizeOf(out) }
		}
		return w.run(cmd.Context(), func() error { return read(cmd, args) })
	}
	return cmd
}

func checkInterval(every time.Duration) error {
	if every < shortestTick {
		return fault.New(fault.Usage, "--interval is %v, want %v or more", every, shortestTick)
	}
	return nil
}

// dumb reports whether the terminal understands no control sequences.
func (a *app) dumb() bool { return strings.EqualFold(a.environ("TERM"), "dumb") }

// watch is a read with --watch.
type watch struct {
	*app
	every time.Duration
	title string
	size  func() terminal.Size // of the terminal; nil: output is appended

	painter terminal.Painter
	talk    talk      // what the reads write to standard error, on a terminal
	last    []string  // what the last read that succeeded has shown
	readAt  time.Time // when that was
	reads   int       // so far
	failing string    // what the last read has failed with

	kept keptStore
}

// run repeats the read until ctx ends or an error ends the watch.
func (w *watch) run(ctx context.Context, read func() error) error {
	out, talk := w.Out, w.Err
	if w.size != nil {
		w.Err = &w.talk
	}
	w.watching, w.app.kept = w, &w.kept
	defer func() {
		w.Out, w.Err, w.watching, w.app.kept = out, talk, nil, nil
		w.kept.close()
	}()
	tick := time.NewTicker(w.every)
	defer tick.Stop()
	for {
		var text bytes.Buffer
		w.Out, w.began = &text, time.Now()
		err := read()
		w.Out = out
		w.reads++
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && w.ends(err):
			return err
		case err != nil && fault.Exit(w.asFault(err)) != fault.ExitDegraded:
			w.kept.close()
		}
		if err := w.show(out, text.String(), err); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// ends reports whether an error of a read ends the watch: wrong usage, and whatever the first read finds wrong other
// than a store or a node that is away. Errors of later reads are shown and the read is repeated: a store that was away
// may have no schema yet when it comes.
func (w *watch) ends(err error) bool {
	switch fault.Exit(w.asFault(err)) {
	case fault.ExitUsage:
		return true
	case fault.ExitUnreachable, fault.ExitDegraded:
		return false
	}
	return w.reads == 1
}

// show shows the result of a read, or why there is none.
func (w *watch) show(out io.Writer, text string, err error) error {
	now, was := time.Now(), w.failing
	w.failing = w.oneLine(err)
	if err == nil || text != "" {
		w.last, w.readAt = strings.Split(strings.TrimSuffix(text, "\n"), "\n"), now
	}
	if w.size != nil {
		return w.painter.Paint(terminal.Text(w.frame(now)...), w.size())
	}
	switch {
	case w.failing != "" && w.failing != was:
		w.message("%s; trying again every %v", w.failing, w.every)
	case w.failing == "" && was != "":
		w.message("reading works again")
	}
	if text == "" {
		return nil
	}
	if f := view.Format(w.output); f.IsTable() {
		text = now.UTC().Format(time.RFC3339) + "\n" + text + "\n"
	} else if f == view.YAMLFormat {
		text = "---\n" + text
	}
	_, err = io.WriteString(out, text)
	return err
}

// frame returns what is on the terminal: the command, the time, what is wrong, and the last result.
func (w *watch) frame(now time.Time) []string {
	out := []string{fmt.Sprintf("%s, every %v: %s", w.title, w.every, now.UTC().Format("2006-01-02 15:04:05Z"))}
	if w.failing != "" {
		out = append(out, "! "+w.failing)
		if !w.readAt.IsZero() && !w.readAt.Equal(now) {
			out = append(out, "! what follows is "+view.Exact(now.Sub(w.readAt))+" old")
		}
	}
	out = append(append(out, ""), w.last...)
	if printed := w.talk.take(); printed != "" {
		for line := range strings.Lines(printed) {
			out = append(out, view.Line(strings.TrimSuffix(line, "\n")))
		}
	}
	return out
}

// columns returns the width that tables are fitted to; 0 means unlimited.
func (w *watch) columns() int {
	if w.size == nil {
		return 0
	}
	return w.size().Columns
}

// oneLine returns an error for a line of a frame; "" for nil.
func (a *app) oneLine(err error) string {
	if err == nil {
		return ""
	}
	f := fault.Of(a.asFault(err))[0]
	return fault.Redact(string(f.Code)+": "+view.Line(f.What), a.secrets...)
}
