package cli

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/emitd/emitd/cmd/emitd/internal/backend"
	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/admin/fault"
	"github.com/emitd/emitd/internal/admin/view"
	"github.com/emitd/emitd/internal/coordinator/history"
)

func (a *app) eventsCommand() *cobra.Command {
	var f view.EventFilter
	var follow bool
	cmd := &cobra.Command{
		Use: "events", Short: "Show the history of the cluster",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !f.Valid() {
				return fault.New(fault.Usage, "--kind %s is not a pattern, want one such as leader.* or assignment.failed", f.Kind)
			}
			return a.events(cmd.Context(), f, follow)
		},
	}
	fl := cmd.Flags()
	fl.BoolVarP(&follow, "follow", "f", false, "continue with new events as they happen, until interrupted")
	sinceFlag(cmd, &f.Since, "only events of this last period, such as 1h, by the store's clock")
	fl.StringVar(&f.Kind, "kind", "*", "only kinds that match, such as leader.* or assignment.failed")
	fl.StringVar(&f.Node, "node", "", "only of this node, by name or ID")
	fl.StringVar(&f.Daemon, "daemon", "", "only of this daemon or unit")
	a.completeFlag(cmd, "node", nodeNames)
	a.completeFlag(cmd, "daemon", unitNames)
	_ = cmd.RegisterFlagCompletionFunc("kind", cobra.FixedCompletions(eventFamilies, cobra.ShellCompDirectiveNoFileComp))
	return a.addrFlags(a.outputFlag(cmd))
}

func (a *app) events(ctx context.Context, f view.EventFilter, follow bool) error {
	if a.node.address == "" {
		return a.withCluster(ctx, false, func(first context.Context, c *cluster) error {
			return a.eventsOf(ctx, first, c.store, &eventPrinter{a: a, now: c.snap.Now, filter: f, follow: follow})
		})
	}
	node, err := a.remote()
	if err != nil {
		return err
	}
	first, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	now, err := node.now(first)
	if err != nil {
		return err
	}
	return a.eventsOf(ctx, first, node, &eventPrinter{a: a, now: now, filter: f, follow: follow})
}

// eventsOf prints the events that there are, within first, and then follows the history within ctx.
func (a *app) eventsOf(ctx, first context.Context, from eventSource, p *eventPrinter) error {
	r := &history.Reader{Events: from.Events}
	err := pages(first, from, func(es []daemon.Event) error {
		for i := range es {
			if err := p.event(&es[i]); err != nil {
				return err
			}
			r.Pass(&es[i])
		}
		return nil
	})
	if err != nil {
		return err
	}
	if !p.follow {
		return p.finish()
	}
	return a.follow(ctx, r, p)
}

// followEvery is how often the store is queried for newer events.
const followEvery = 500 * time.Millisecond

// follow prints newer events until ctx ends, which is not an error. It continues through outages of the
// store, and says which events it misses.
func (a *app) follow(ctx context.Context, r *history.Reader, p *eventPrinter) error {
	a.endProgress()
	tick := time.NewTicker(followEvery)
	defer tick.Stop()
	down := false
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		round, cancel := context.WithTimeout(ctx, a.timeout)
		err := a.readOn(round, r, p)
		cancel()
		switch {
		case ctx.Err() != nil:
			return nil
		case p.failed != nil:
			return p.failed
		case err != nil && !down:
			a.message("the store does not answer, trying again: %v", backend.Fault(err).What)
		case err == nil && down:
			a.message("the store answers again")
		}
		down = err != nil
	}
}

// readOn prints the events that there are after the reader's place.
func (a *app) readOn(ctx context.Context, r *history.Reader, p *eventPrinter) error {
	gone := func(what string) error {
		a.message("-- events are gone: %s", what)
		return nil
	}
	for {
		before := r.After
		err := r.Read(ctx, gone, func(e daemon.Event) error { return p.event(&e) })
		if err != nil || r.After == before {
			return err
		}
	}
}

// eventPrinter writes events one by one if the format allows it.
type eventPrinter struct {
	a      *app
	now    time.Time
	filter view.EventFilter
	follow bool
	kept   []view.Event // for formats that need all events at once
	headed bool
	failed error // the first error of the output
}

// streams reports whether events are written as they arrive.
func (p *eventPrinter) streams() bool {
	return p.follow || view.Format(p.a.output) == view.JSONLFormat
}

func (p *eventPrinter) event(e *daemon.Event) error {
	if !p.filter.Selects(e, p.now) {
		return nil
	}
	v := view.EventOf(*e)
	if !p.streams() {
		p.kept = append(p.kept, v)
		return nil
	}
	p.failed = p.write(v)
	return p.failed
}

func (p *eventPrinter) write(e view.Event) error {
	switch view.Format(p.a.output) {
	case view.TableFormat, view.WideFormat:
		if !p.headed {
			p.headed = true
			if err := eventLine(p.a.Out, view.EventHead); err != nil {
				return err
			}
		}
		return eventLine(p.a.Out, e.Row())
	case view.NameFormat:
		_, err := fmt.Fprintln(p.a.Out, e.Seq)
		return err
	case view.YAMLFormat:
		if _, err := io.WriteString(p.a.Out, "---\n"); err != nil {
			return err
		}
		return writeYAML(p.a.Out, e)
	}
	return view.JSONLine(p.a.Out, e)
}

// eventLine writes a row in columns of fixed width, because later rows are unknown.
func eventLine(w io.Writer, row []string) error {
	for i := range row {
		row[i] = view.Line(row[i])
		if row[i] == "" {
			row[i] = "-"
		}
	}
	_, err := fmt.Fprintf(w, "%-7s %-24s %-22s %-12s %-36s %s\n", row[0], row[1], row[2], row[3], row[4], strings.TrimSpace(row[5]))
	return err
}

func (p *eventPrinter) finish() error {
	if p.streams() {
		return nil
	}
	return p.a.print(list(p.kept, func(e view.Event) string { return fmt.Sprint(e.Seq) }, func(bool) *view.Table {
		t := &view.Table{Head: view.EventHead}
		for _, e := range p.kept {
			t.Add(e.Row()...)
		}
		return t
	}))
}
