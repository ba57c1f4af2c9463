package admin

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/admin/body"
	"github.com/emitd/emitd/internal/admin/fault"
	"github.com/emitd/emitd/internal/admin/view"
	"github.com/emitd/emitd/internal/coordinator/plan"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/queue"
)

// clusterOperations lists the calls that read the present state of the cluster.
func clusterOperations() []operation {
	return []operation{
		get("getOverview", "/overview", "The cluster in numbers, and what needs attention; or that of the queues and subscriptions that the caller may read", (*API).overview).authorizing(),
		get("getStatus", "/status", "The whole cluster: leader, nodes, units, and what needs attention", (*API).status),
		get("listNodes", "/nodes", "The nodes, by name", (*API).nodes),
		get("getNode", "/nodes/{node}", "One node, by name or ID", (*API).node),
		get("listDaemons", "/daemons", "The daemons with the number of their units, by ID", (*API).daemons),
		get("getDaemon", "/daemons/{daemon...}", "One daemon, with the number of its units", (*API).daemon),
		get("listUnits", "/units", "The units, by daemon and index", (*API).units),
		get("getUnit", "/units/{unit...}", "One unit, and why it is on its node", (*API).unit),
		get("getLeader", "/leader", "The leader, null if there is none", (*API).leader),
	}
}

type overviewIn struct {
	fromRequest
	waitLimit
}

func (a *API) overview(ctx context.Context, in *overviewIn) (*view.Overview, error) {
	if refusal := a.authorize(in.r, Access{Role: RoleRead}); refusal != nil {
		return a.limitedOverview(ctx, in, refusal)
	}
	s, err := a.whole(ctx, false, in.MaxWait)
	if err != nil {
		return nil, err
	}
	out := s.Overview()
	return &out, nil
}

// everything says whether a list has also what is gone.
type everything struct {
	// All includes nodes that have left, and units that are no longer declared.
	All bool `query:"all"`
}

type statusIn struct {
	everything
	waitLimit
}

// waitLimit says for how long jobs and messages may wait.
type waitLimit struct {
	// MaxWait is how long a job or a message of the outbox may wait before it needs attention; 0s is without limit.
	MaxWait time.Duration `query:"max_wait" default:"5m"`
}

// defaultMaxWait is that of MaxWait.
const defaultMaxWait = 5 * time.Minute

func (a *API) status(ctx context.Context, in *statusIn) (*view.Status, error) {
	return a.whole(ctx, in.All, in.MaxWait)
}

// limitedOverview returns the overview of what a caller may read who may not read the cluster, and the refusal if that is
// nothing.
func (a *API) limitedOverview(ctx context.Context, in *overviewIn, refusal error) (*view.Overview, error) {
	if queue.TagOf(refusal) == queue.Unauthorized {
		return nil, refusal
	}
	queues, noQueues := a.queuesOf(ctx, in.r)
	var box *view.Outbox
	var noBox error
	if a.cfg.Outbox != nil {
		all, err := a.outboxReads.get(ctx)
		if err != nil {
			return nil, err
		}
		box, noBox = a.outboxOf(in.r, all)
	}
	if queues == nil && box == nil {
		return nil, cmp.Or(noQueues, noBox, refusal)
	}
	s, err := a.reads.get(ctx)
	if err != nil {
		return nil, err
	}
	whole := s.status()
	part := view.Status{Cluster: whole.Cluster, At: whole.At, Attention: []view.Notice{}}
	part.AddQueues(queues, in.MaxWait)
	part.AddOutbox(box, in.MaxWait)
	out := part.Overview()
	out.Limited = true
	return &out, nil
}

// whole returns the status with the queues and the outbox, which are read at the same time.
func (a *API) whole(ctx context.Context, all bool, maxWait time.Duration) (*view.Status, error) {
	var queues *view.Queues
	var box *view.Outbox
	var errs [2]error
	var parts sync.WaitGroup
	parts.Go(func() { queues, errs[0] = a.queueReads.get(ctx) })
	parts.Go(func() { box, errs[1] = a.outboxReads.get(ctx) })
	s, err := a.reads.get(ctx)
	parts.Wait()
	if err = errors.Join(err, errs[0], errs[1]); err != nil {
		return nil, err
	}
	out := s.of(all)
	out.Attention = slices.Clone(out.Attention) // shared
	out.AddQueues(queues, maxWait)
	out.AddOutbox(box, maxWait)
	return &out, nil
}

type nodesIn struct {
	paging
	everything
	// State selects the nodes in one state: live, late, deaf, draining or removed.
	State node.State `query:"state"`
}

// nodePage is a page of nodes.
type nodePage struct {
	At     view.Time   `json:"at"` // the store's clock
	Nodes  []view.Node `json:"nodes"`
	Cursor *string     `json:"cursor"` // of the next page; null at the end
}

// nodeKey is by what nodes are sorted.
type nodeKey struct {
	Name         string           `json:"n"`
	RegisteredAt time.Time        `json:"r"`
	Incarnation  node.Incarnation `json:"i"`
}

func (a *API) nodes(ctx context.Context, in *nodesIn) (*nodePage, error) {
	s, err := a.reads.get(ctx)
	if err != nil {
		return nil, err
	}
	status := s.of(in.All)
	chosen := filtered(status.Nodes, func(n *view.Node) bool { return in.State == "" || in.State == n.State })
	out := &nodePage{At: status.At}
	out.Nodes, out.Cursor, err = page(chosen, in.paging, "nodes",
		func(n *view.Node) nodeKey { return nodeKey{n.Name, n.RegisteredAt.Time, n.Incarnation} },
		func(a, b nodeKey) int {
			return cmp.Or(cmp.Compare(a.Name, b.Name), a.RegisteredAt.Compare(b.RegisteredAt), cmp.Compare(a.Incarnation, b.Incarnation))
		})
	return out, err
}

type nodeIn struct {
	// Node is the name or the ID of a node.
	Node string `path:"node"`
}

// nodeAnswer is one node.
type nodeAnswer struct {
	At   view.Time `json:"at"` // the store's clock
	Node view.Node `json:"node"`
}

func (a *API) node(ctx context.Context, in *nodeIn) (*nodeAnswer, error) {
	s, err := a.reads.get(ctx)
	if err != nil {
		return nil, err
	}
	status := s.all()
	n, err := status.FindNode(in.Node)
	if err != nil {
		return nil, err
	}
	return &nodeAnswer{status.At, *n}, nil
}

type daemonsIn struct {
	paging
	everything
}

// daemonPage is a page of daemons.
type daemonPage struct {
	At      view.Time     `json:"at"` // the store's clock
	Daemons []view.Daemon `json:"daemons"`
	Cursor  *string       `json:"cursor"` // of the next page; null at the end
}

func (a *API) daemons(ctx context.Context, in *daemonsIn) (*daemonPage, error) {
	s, err := a.reads.get(ctx)
	if err != nil {
		return nil, err
	}
	status := s.of(in.All)
	out := &daemonPage{At: status.At}
	out.Daemons, out.Cursor, err = page(status.ByDaemon(), in.paging, "daemons", func(d *view.Daemon) daemon.ID { return d.ID }, cmp.Compare)
	return out, err
}

type daemonIn struct {
	// Daemon is the ID of a daemon. It may have slashes; write one that follows another slash as %2F.
	Daemon daemon.ID `path:"daemon"`
}

// daemonAnswer is one daemon.
type daemonAnswer struct {
	At     view.Time   `json:"at"` // the store's clock
	Daemon view.Daemon `json:"daemon"`
}

func (a *API) daemon(ctx context.Context, in *daemonIn) (*daemonAnswer, error) {
	s, err := a.reads.get(ctx)
	if err != nil {
		return nil, err
	}
	status := s.all()
	all := status.ByDaemon()
	i, ok := slices.BinarySearchFunc(all, in.Daemon, func(d view.Daemon, id daemon.ID) int { return cmp.Compare(d.ID, id) })
	if !ok {
		return nil, fault.New(fault.NoDaemon, "there is no daemon %.200q", string(in.Daemon))
	}
	return &daemonAnswer{status.At, all[i]}, nil
}

type unitsIn struct {
	paging
	everything
	// Daemon selects the units of one daemon.
	Daemon daemon.ID `query:"daemon"`
	// Node selects the units that a node holds, by its name or ID.
	Node string `query:"node"`
	// State selects the units in one state, such as active, unassigned or crashing.
	State daemon.State `query:"state"`
}

func (in *unitsIn) selects(u *view.Unit) bool {
	return (in.Daemon == "" || in.Daemon == u.Daemon) && (in.State == "" || in.State == u.State) &&
		(in.Node == "" || in.Node == u.Node || in.Node == string(u.NodeID))
}

// unitPage is a page of units.
type unitPage struct {
	At     view.Time   `json:"at"` // the store's clock
	Units  []view.Unit `json:"units"`
	Cursor *string     `json:"cursor"` // of the next page; null at the end
}

func (a *API) units(ctx context.Context, in *unitsIn) (*unitPage, error) {
	s, err := a.reads.get(ctx)
	if err != nil {
		return nil, err
	}
	status := s.of(in.All)
	chosen := filtered(status.Daemons, in.selects)
	out := &unitPage{At: status.At}
	out.Units, out.Cursor, err = page(chosen, in.paging, "units", func(u *view.Unit) daemon.Unit { return u.Unit }, daemon.Unit.Compare)
	return out, err
}

type unitIn struct {
	// Unit is a daemon and an index, such as acme:reports/0, or a daemon and a key, such as acme:tenants~globex. A daemon
	// and a key may have slashes; write one that follows another slash as %2F.
	Unit string `path:"unit"`
}

// unitAnswer is one unit, and why it is where it is.
type unitAnswer struct {
	At   view.Time `json:"at"` // the store's clock
	Unit view.Unit `json:"unit"`
	// Address is what the node that owns the unit advertises; empty if none does. A request may be sent there; the unit's
	// generation tells the node's run from earlier and later ones.
	Address string           `json:"address"`
	Plan    plan.Explanation `json:"plan"`
}

func (a *API) unit(ctx context.Context, in *unitIn) (*unitAnswer, error) {
	s, err := a.reads.get(ctx)
	if err != nil {
		return nil, err
	}
	status := s.all()
	u, err := daemon.ParseUnit(in.Unit)
	if err != nil {
		return nil, badCall("%w", err)
	}
	i, ok := slices.BinarySearchFunc(status.Daemons, u, func(v view.Unit, u daemon.Unit) int { return v.Unit.Compare(u) })
	if !ok {
		return nil, fault.New(fault.NoDaemon, "there is no unit %.200q", in.Unit)
	}
	explained := view.Explain(s.snap, a.reader(true), u)
	if explained.Rows == nil {
		explained.Rows = []plan.Row{}
	}
	answer := &unitAnswer{At: status.At, Unit: status.Daemons[i], Plan: explained}
	for _, n := range status.Nodes {
		if answer.Unit.Node != "" && n.ID == answer.Unit.NodeID {
			answer.Address = n.Address
		}
	}
	return answer, nil
}

type leaderIn struct{}

func (a *API) leader(ctx context.Context, _ *leaderIn) (*body.LeaderAnswer, error) {
	s, err := a.reads.get(ctx)
	if err != nil {
		return nil, err
	}
	status := s.status()
	return &body.LeaderAnswer{At: status.At, Leader: status.Leader}, nil
}
