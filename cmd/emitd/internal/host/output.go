package host

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/emitd/emitd/cmd/emitd/internal/config"
	"github.com/emitd/emitd/cmd/emitd/internal/nodeapi"
	"github.com/emitd/emitd/cmd/emitd/internal/runlog"
	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/admin/fault"
	"github.com/emitd/emitd/node"
)

// outputQuery is a call for the output of a command.
type outputQuery struct {
	runlog.Query
	unit string        // a unit, or a daemon with one unit
	node string        // name or ID of the node to ask; "" = the one where the unit is, or was last
	wait time.Duration // how long to wait for something that follows After
}

// mostWait is the longest wait of a call for output. Proxies cut off what is quiet for longer.
const mostWait = 20 * time.Second

func parseOutputQuery(v url.Values) (q outputQuery, err error) {
	bad := func(name string) error {
		return fault.New(fault.Usage, "%s is %.100q, which is not possible", name, v.Get(name))
	}
	q.unit, q.node = v.Get("unit"), v.Get("node")
	if q.Previous, err = strconv.ParseBool(v.Get("previous")); err != nil && v.Has("previous") {
		return q, bad("previous")
	}
	if q.Tail, err = strconv.Atoi(v.Get("tail")); v.Has("tail") && (err != nil || q.Tail < 0) {
		return q, bad("tail")
	}
	if q.wait, err = time.ParseDuration(v.Get("wait")); v.Has("wait") && (err != nil || q.wait < 0) {
		return q, bad("wait")
	}
	if v.Has("after") && q.After.UnmarshalText([]byte(v.Get("after"))) != nil {
		return q, bad("after")
	}
	q.wait = min(q.wait, mostWait)
	return q, nil
}

// values is the inverse of parseOutputQuery.
func (q outputQuery) values() url.Values {
	v := url.Values{"unit": {q.unit}}
	if q.Previous {
		v.Set("previous", "true")
	}
	if q.Tail > 0 {
		v.Set("tail", strconv.Itoa(q.Tail))
	}
	if q.After != (runlog.Cursor{}) {
		v.Set("after", q.After.String())
		v.Set("wait", q.wait.String())
	}
	return v
}

// output answers calls for the output of commands. Any node answers: it finds the node where the unit is, or was last,
// and forwards the call with the caller's token.
func (h *host) output(w http.ResponseWriter, r *http.Request) {
	q, err := parseOutputQuery(r.URL.Query())
	if err == nil && r.Header.Get(nodeapi.Forwarded) == "" {
		var at *node.Member
		if at, err = h.locate(r.Context(), &q); err == nil && at != nil {
			err = h.forwardOutput(w, r, q, at)
			if err == nil {
				return
			}
		}
	}
	var page runlog.Page
	if err == nil {
		page, err = h.ownOutput(r.Context(), q)
	}
	if err != nil {
		nodeapi.Refuse(w, fault.Of(err)[0])
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(page)
}

// locate completes the name of the unit and returns the node to forward the call to; nil means this process. While the
// store does not answer, the process answers from what it keeps.
func (h *host) locate(ctx context.Context, q *outputQuery) (*node.Member, error) {
	ctx, cancel := context.WithTimeout(ctx, h.Config.Timing().QueryTimeout)
	defer cancel()
	snap, err := h.up.Store.Snapshot(ctx)
	if err != nil {
		if _, here := h.runs.Read(q.unit, runlog.Query{}); here == nil && q.node == "" {
			return nil, nil
		}
		return nil, err
	}
	m, err := whereIs(snap, q)
	if err != nil || m.Address == h.up.Advertised {
		return nil, err
	}
	return m, nil
}

// whereIs completes the name of the unit, and returns the node that is asked for its output.
func whereIs(snap *daemon.Snapshot, q *outputQuery) (*node.Member, error) {
	rec, err := recordOf(snap, q.unit)
	if err != nil {
		return nil, err
	}
	q.unit = rec.Unit.String()
	if builtin(rec.Unit.Daemon) {
		return nil, noCommand(rec.Unit.Daemon)
	}
	if q.node != "" {
		for i, m := range slices.Backward(snap.Nodes) { // the newest of several with one name
			if m.Present() && (m.Name == q.node || string(m.ID) == q.node) {
				return &snap.Nodes[i], nil
			}
		}
		return nil, fault.New(fault.NoNode, "there is no node %q", q.node)
	}
	if rec.Holder.Incarnation == "" {
		return nil, fault.New(fault.NoOutput, "%s has not run on any node yet", q.unit).Hint("see why: emitd daemon explain %s", q.unit)
	}
	for i, m := range snap.Nodes {
		if m.Incarnation == rec.Holder.Incarnation && m.Present() {
			return &snap.Nodes[i], nil
		}
	}
	return nil, fault.New(fault.NoOutput, "%s, where %s ran last, is gone, and the output that it kept with it", rec.Holder.Name, q.unit).
		Hint("see why it ended: emitd events --daemon %s", q.unit)
}

// recordOf returns the row of a unit, or of the only unit of a daemon.
func recordOf(snap *daemon.Snapshot, name string) (*daemon.Record, error) {
	var found []*daemon.Record
	var names []string
	for i, r := range snap.Units {
		if r.Unit.String() == name {
			return &snap.Units[i], nil
		}
		if !r.Retired {
			names = append(names, r.Unit.String())
			if string(r.Unit.Daemon) == name {
				found = append(found, &snap.Units[i])
			}
		}
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		f := fault.New(fault.NoDaemon, "there is no daemon or unit %q", name)
		if near := config.Nearest(name, names); near != "" {
			f.What += "; did you mean " + near + "?"
		}
		return nil, f
	}
	return nil, fault.New(fault.Usage, "%s has %d units, and each has its own output", name, len(found)).
		Hint("name one, such as %s", found[0].Unit)
}

func noCommand(id daemon.ID) error {
	return fault.New(fault.Usage, "%s is not a command (daemons.exec), so it has no output of its own", id).
		Hint("what it logs is in the log of its node: emitd daemon ls shows which")
}

// forwardOutput passes the call on. An error means that nothing was answered yet.
func (h *host) forwardOutput(w http.ResponseWriter, r *http.Request, q outputQuery, at *node.Member) error {
	ctx, cancel := context.WithTimeout(r.Context(), q.wait+h.Config.Timing().QueryTimeout)
	defer cancel()
	c := nodeapi.Caller{TLS: h.guard.peers(), Authorization: r.Header.Get("Authorization"), Forwards: true}
	body, err := c.Get(ctx, at.Address, nodeapi.Output, q.values())
	if err != nil {
		if f := fault.Of(err)[0]; f.Code == fault.NodeUnreachable {
			f.What = at.Name + ", which has the output of " + q.unit + ": " + f.What
			f.Do = "see emitd node ls: if the node has died, its units move, and the output that it kept is gone"
		}
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(body)
	return nil
}

// ownOutput returns output that this process keeps.
func (h *host) ownOutput(ctx context.Context, q outputQuery) (runlog.Page, error) {
	u, err := daemon.ParseUnit(q.unit)
	if err != nil {
		return runlog.Page{}, fault.New(fault.NoDaemon, "there is no unit %.100q", q.unit)
	}
	command := slices.ContainsFunc(h.Config.Daemons.Exec, func(e config.Exec) bool { return daemon.ID(e.ID).In(h.Config.Node.Group) == u.Daemon })
	name := h.nodes[0].Name
	switch {
	case !command:
		return runlog.Page{}, fault.New(fault.Usage, "%s has no command %s (daemons.exec), so it keeps no output of it", name, u.Daemon).
			Hint("a daemon that is no command logs into the log of its node; emitd daemon ls shows where it is")
	case h.runs == nil:
		return runlog.Page{}, fault.New(fault.NoOutput, "%s keeps no output: daemons.output_buffer is 0", name)
	case q.After != (runlog.Cursor{}):
		ctx, cancel := context.WithTimeout(ctx, q.wait)
		defer cancel()
		go func() { // a process that stops keeps nobody waiting
			select {
			case <-h.ending:
				cancel()
			case <-ctx.Done():
			}
		}()
		return h.runs.Wait(ctx, q.unit, q.After), nil
	}
	page, err := h.runs.Read(q.unit, q.Query)
	switch {
	case errors.Is(err, runlog.ErrNoPrevious):
		return page, fault.New(fault.NoOutput, "%s keeps no run of %s before the newest one", name, q.unit).
			Hint("an earlier run on another node has its output there: emitd daemon logs %s --node NAME; emitd events --daemon %s says where it ran", q.unit, q.unit)
	case err != nil:
		return page, fault.New(fault.NoOutput, "%s keeps no run of %s: none has begun there, or it is too long ago", name, q.unit)
	}
	return page, nil
}
