package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/emitd/emitd/cmd/emitd/internal/nodeapi"
	"github.com/emitd/emitd/cmd/emitd/internal/runlog"
	"github.com/emitd/emitd/internal/admin/fault"
	"github.com/emitd/emitd/internal/admin/view"
)

// outputReader reads the output of a unit's commands.
type outputReader struct {
	a    *app
	q    *queues // how to reach a node
	unit string
	node string
	tail int

	previous, follow bool

	caller    nodeapi.Caller
	addresses []string                                // of nodes; the first one has answered last, those at the end have failed last
	find      func(context.Context) ([]string, error) // the addresses anew; nil: they are given

	shown runlog.Run // the run whose lines are being printed
	ended bool       // its end was reported
	kept  []outputLine
}

// outputLine is a line in JSON and YAML.
type outputLine struct {
	Unit       string `json:"unit"`
	Node       string `json:"node"`
	Generation int64  `json:"generation"`
	Run        int64  `json:"run"`
	runlog.Line
}

func (a *app) logsCommand() *cobra.Command {
	r := &outputReader{a: a, q: &queues{a: a}}
	cmd := &cobra.Command{
		Use: "logs UNIT", Short: "Show what a command (daemons.exec) prints",
		Long: "Show the output of a unit's command, standard output and standard error together. Its node keeps the latest\n" +
			"output (daemons.output_buffer) of the newest run and of the one before, as long as it lives. Any node finds it.\n" +
			"A command that fails and is started again begins a new run: --previous shows what it said before it failed.\n\n" +
			"-f follows the unit, through failures and to other nodes, until it is interrupted. On a terminal, control\n" +
			"characters are shown as ^[ and the like. -o wide shows times, by the node's clock, and which stream it was.",
		Args: exactly(1, "a unit, such as acme:reports/2, or a daemon with one unit"),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case r.previous && r.follow:
				return fault.New(fault.Usage, "--previous and --follow exclude each other: an earlier run prints nothing more")
			case r.tail < 0:
				return fault.New(fault.Usage, "--tail is %d, want 0 (all) or more", r.tail)
			}
			r.unit = args[0]
			return r.read(cmd.Context())
		},
	}
	fl := cmd.Flags()
	fl.BoolVarP(&r.follow, "follow", "f", false, "continue with new lines and runs as they come, until interrupted")
	fl.BoolVar(&r.previous, "previous", false, "the run before the newest one")
	fl.IntVar(&r.tail, "tail", 0, "only this many of the last lines; 0: all that are kept")
	fl.StringVar(&r.node, "node", "", "name of a node where the unit was before; by default where it is now, or was last")
	r.q.flags(fl)
	a.complete(cmd, unitNames)
	a.completeFlag(cmd, "node", nodeNames)
	return a.outputFlag(cmd)
}

// read prints what is there, and follows if it should.
func (r *outputReader) read(ctx context.Context) error {
	cfg, err := r.q.config(ctx, r.nodes)
	if err != nil {
		return err
	}
	r.addresses, r.caller = cfg.Addresses, nodeapi.Caller{TLS: cfg.TLS}
	if cfg.Token != "" {
		r.caller.Authorization = "Bearer " + cfg.Token
	}
	if r.q.address == "" {
		r.find = r.nodes
	}
	var after runlog.Cursor
	page, err := r.get(ctx, r.values(nil))
	for err == nil {
		after = page.Next
		if err := r.print(page); err != nil {
			return err
		}
		if !page.More {
			break
		}
		page, err = r.get(ctx, r.values(&after))
	}
	switch {
	case r.follow:
		return r.goOn(ctx, after, err)
	case err != nil:
		return err
	}
	return r.finish()
}

// nodes returns the addresses of live nodes.
func (r *outputReader) nodes(ctx context.Context) (found []string, err error) {
	err = r.a.withCluster(ctx, false, func(_ context.Context, c *cluster) error {
		for _, n := range c.snap.Nodes {
			if n.Present() && n.LeaderState == "" && n.Address != "" {
				found = append(found, n.Address)
			}
		}
		if len(found) == 0 {
			return fault.New(fault.NodeUnreachable, "no node of cluster %s is up", c.cfg.Cluster)
		}
		return nil
	})
	return found, err
}

// values returns the parameters of a call.
func (r *outputReader) values(after *runlog.Cursor) url.Values {
	v := url.Values{"unit": {r.unit}}
	if r.node != "" {
		v.Set("node", r.node)
	}
	switch {
	case after != nil:
		v.Set("after", after.String())
	case r.previous:
		v.Set("previous", "true")
	}
	if after == nil && r.tail > 0 {
		v.Set("tail", strconv.Itoa(r.tail))
	}
	return v
}

// get calls one node after the other, until one answers. A call that waits for output may take --timeout longer than
// that. Other calls take --timeout together, and each leaves half of the rest to the others.
func (r *outputReader) get(ctx context.Context, v url.Values) (page runlog.Page, err error) {
	wait, _ := time.ParseDuration(v.Get("wait"))
	end := time.Now().Add(r.a.timeout)
	for left := len(r.addresses); left > 0; left-- {
		within := wait + r.a.timeout
		if wait == 0 {
			within = time.Until(end) / time.Duration(min(left, 2))
		}
		if page, err = r.call(ctx, within, r.addresses[0], v); err == nil {
			r.unit = page.Unit // complete
			return page, nil
		}
		if fault.Of(err)[0].Code != fault.NodeUnreachable || ctx.Err() != nil {
			return page, err
		}
		r.addresses = append(slices.Clone(r.addresses[1:]), r.addresses[0])
	}
	return page, err
}

// call makes one call.
func (r *outputReader) call(ctx context.Context, within time.Duration, addr string, v url.Values) (page runlog.Page, err error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	body, err := r.caller.Get(ctx, addr, nodeapi.Output, v)
	if err != nil {
		return page, err
	}
	if err := json.Unmarshal(body, &page); err != nil {
		return page, fault.New(fault.NodeUnreachable, "the answer of the node at %s makes no sense: %w", addr, err)
	}
	return page, nil
}

// The pace of following.
const (
	followWait  = 20 * time.Second       // how long a node waits for more output
	followPause = 500 * time.Millisecond // shortest time between two calls
)

// goOn prints what follows a place, until ctx ends. Whatever can become right by itself (a node that dies, a unit that has
// not begun) is reported once and tried again. failed is the error of the calls before.
func (r *outputReader) goOn(ctx context.Context, after runlog.Cursor, failed error) error {
	r.a.endProgress()
	printed := ""
	tick := time.NewTicker(followPause)
	defer tick.Stop()
	for {
		switch {
		case ctx.Err() != nil:
			return nil
		case failed != nil:
			f := fault.Of(failed)[0]
			if !passing(f.Code) {
				return failed
			}
			if text := r.a.oneLine(f); text != printed {
				printed = text
				r.a.message("%s; trying again", text)
			}
			if f.Code == fault.NodeUnreachable && r.find != nil { // other nodes may be there by now
				if found, err := r.find(ctx); err == nil {
					r.addresses = found
				}
			}
		case printed != "":
			printed = ""
			r.a.message("reading works again")
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		v := r.values(&after)
		if after == (runlog.Cursor{}) {
			v = r.values(nil)
		}
		v.Set("wait", followWait.String())
		var page runlog.Page
		if page, failed = r.get(ctx, v); failed == nil {
			after = page.Next
			if err := r.print(page); err != nil {
				return err
			}
		}
	}
}

// passing reports whether a failure may end by itself.
func passing(code fault.Code) bool {
	return slices.Contains([]fault.Code{fault.NodeUnreachable, fault.Unreachable, fault.NoOutput}, code)
}

// print prints a page.
func (r *outputReader) print(p runlog.Page) error {
	another := p.Generation != r.shown.Generation || p.Number != r.shown.Number
	if another && p.Number != 0 {
		if r.shown.Number != 0 {
			r.a.message("-- run %d of generation %d begins on %s", p.Number, p.Generation, p.Node)
		}
		r.shown, r.ended = p.Run, false
	}
	if p.Dropped > 0 {
		r.a.message("-- %d lines are kept no longer", p.Dropped)
	}
	for _, line := range p.Lines {
		if err := r.line(outputLine{p.Unit, p.Node, p.Generation, p.Number, line}); err != nil {
			return err
		}
	}
	if p.Next.Ended && !r.ended && (r.follow || r.previous) {
		r.ended = true
		how := "ended"
		if p.Result != "" {
			how = "failed: " + firstLine(p.Result)
		}
		r.a.message("-- %s: %s", p.EndedAt.UTC().Format(time.RFC3339), view.Line(how))
	}
	return nil
}

// line prints or keeps a line.
func (r *outputReader) line(l outputLine) error {
	var err error
	switch view.Format(r.a.output) {
	case view.TableFormat:
		_, err = fmt.Fprintln(r.a.Out, r.text(l.Line))
	case view.WideFormat:
		_, err = fmt.Fprintf(r.a.Out, "%s %s %s\n", l.At.UTC().Format("2006-01-02T15:04:05.000Z"), l.Stream, r.text(l.Line))
	case view.JSONLFormat:
		err = view.JSONLine(r.a.Out, l)
	default:
		if !r.follow {
			r.kept = append(r.kept, l)
			return nil
		}
		switch view.Format(r.a.output) {
		case view.NameFormat:
			_, err = fmt.Fprintf(r.a.Out, "%d.%d.%d\n", l.Generation, l.Run, l.Number)
		case view.YAMLFormat:
			if _, err = io.WriteString(r.a.Out, "---\n"); err == nil {
				err = writeYAML(r.a.Out, l)
			}
		default:
			err = view.JSONLine(r.a.Out, l)
		}
	}
	return err
}

// text returns the text of a line. On a terminal, it cannot do anything but be shown.
func (r *outputReader) text(l runlog.Line) string {
	text := l.Text
	if l.Truncated {
		text += "…"
	}
	if isTerminal(r.a.Out) {
		return view.Visible(text)
	}
	return text
}

// finish prints what was kept for a format that needs everything at once.
func (r *outputReader) finish() error {
	if view.Format(r.a.output).IsTable() || view.Format(r.a.output) == view.JSONLFormat {
		return nil
	}
	return r.a.print(list(r.kept, func(l outputLine) string { return fmt.Sprintf("%d.%d.%d", l.Generation, l.Run, l.Number) }, nil))
}
