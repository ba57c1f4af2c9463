package coordinator

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/coordinator/lease"
	"github.com/emitd/emitd/internal/coordinator/plan"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
)

// scope is the name of this package's meter and tracer.
const scope = "github.com/emitd/emitd/coordinator"

// The bucket boundaries of the histograms, in seconds. The SDK's defaults are for milliseconds.
var (
	callBounds      = []float64{0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10}
	lifecycleBounds = []float64{0.1, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300}
)

// instruments holds every metric of this package, and its tracer.
type instruments struct {
	cluster attribute.KeyValue
	meter   metric.Meter
	tracer  trace.Tracer

	// Recorded when something happens.
	transitions           metric.Int64Counter
	election              metric.Float64Histogram
	leaderless            metric.Float64Histogram
	renew                 metric.Float64Histogram
	heartbeat             metric.Float64Histogram
	assignmentTransitions metric.Int64Counter
	acknowledge           metric.Float64Histogram
	drain                 metric.Float64Histogram
	unowned               metric.Float64Histogram
	observer              metric.Float64Histogram

	// Observed when a collector asks.
	leader          metric.Int64ObservableGauge
	term            metric.Int64ObservableGauge
	trust           metric.Float64ObservableGauge
	nodeCount       metric.Int64ObservableUpDownCounter
	assignmentCount metric.Int64ObservableUpDownCounter
	unplaceable     metric.Int64ObservableUpDownCounter
	unplaceableAge  metric.Float64ObservableGauge
	offset          metric.Float64ObservableGauge
	changeTime      metric.Float64ObservableGauge
	changeLimit     metric.Float64ObservableGauge
	brake           metric.Int64ObservableGauge

	counts      atomic.Pointer[counts]
	clockOffset atomic.Pointer[time.Duration]
}

// counts are the numbers of nodes and units in the leader's newest snapshot.
type counts struct {
	nodes map[node.State]int64
	units map[daemon.State]int64
}

// crashing is the state under which a unit in a crash loop is counted, instead of its row's state.
const crashing daemon.State = "crashing"

func newInstruments(c *Coordinator) (*instruments, error) {
	m := &instruments{
		cluster: attribute.String("emitd.cluster.name", c.cfg.Cluster),
		meter:   c.cfg.MeterProvider.Meter(scope),
		tracer:  c.cfg.TracerProvider.Tracer(scope),
	}
	var errs []error
	histogram := func(into *metric.Float64Histogram, name string, bounds []float64, what string) {
		var err error
		*into, err = m.meter.Float64Histogram(name, metric.WithUnit("s"), metric.WithDescription(what), metric.WithExplicitBucketBoundaries(bounds...))
		errs = append(errs, err)
	}
	counter := func(into *metric.Int64Counter, name, unit, what string) {
		var err error
		*into, err = m.meter.Int64Counter(name, metric.WithUnit(unit), metric.WithDescription(what))
		errs = append(errs, err)
	}
	counter(&m.transitions, "emitd.coordinator.transitions", "{transition}", "Times this node became leader or stopped being it, by reason.")
	histogram(&m.election, "emitd.coordinator.election.duration", callBounds, "Duration of a request for the next term.")
	histogram(&m.leaderless, "emitd.coordinator.leaderless.duration", lifecycleBounds, "Time from the expiry of a lease to the next term, by the store's clock.")
	histogram(&m.renew, "emitd.lease.renew.duration", callBounds, "Duration of a renewal.")
	histogram(&m.heartbeat, "emitd.node.heartbeat.duration", callBounds, "Duration of a heartbeat.")
	counter(&m.assignmentTransitions, "emitd.assignment.transitions", "{transition}", "State changes of assignments that this node caused.")
	histogram(&m.acknowledge, "emitd.assignment.acknowledge.duration", lifecycleBounds, "Time from assignment to acknowledgement.")
	histogram(&m.drain, "emitd.assignment.drain.duration", lifecycleBounds, "Time from revocation to confirmation.")
	histogram(&m.unowned, "emitd.assignment.unowned.duration", lifecycleBounds, "Time without a run between two assignments of a unit, as the leader sees it.")
	histogram(&m.observer, "emitd.observer.duration", callBounds, "Duration of a hook.")
	errs = append(errs, m.observables())
	return m, errors.Join(errs...)
}

// observables creates the metrics that are collected on request.
func (m *instruments) observables() error {
	var errs [11]error
	m.leader, errs[0] = m.meter.Int64ObservableGauge("emitd.coordinator.leader", metric.WithUnit("{leader}"), metric.WithDescription("1 while this node leads."))
	m.term, errs[1] = m.meter.Int64ObservableGauge("emitd.coordinator.term", metric.WithUnit("{term}"), metric.WithDescription("Ordinal of the newest term that this node has observed."))
	m.trust, errs[2] = m.meter.Float64ObservableGauge("emitd.lease.trust.remaining", metric.WithUnit("s"), metric.WithDescription("How long this leader may act without another renewal."))
	m.nodeCount, errs[3] = m.meter.Int64ObservableUpDownCounter("emitd.node.count", metric.WithUnit("{node}"), metric.WithDescription("Nodes by state, reported by the leader."))
	m.assignmentCount, errs[4] = m.meter.Int64ObservableUpDownCounter("emitd.assignment.count", metric.WithUnit("{assignment}"), metric.WithDescription("Units by state, reported by the leader."))
	m.offset, errs[5] = m.meter.Float64ObservableGauge("emitd.node.clock.offset", metric.WithUnit("s"), metric.WithDescription("Difference between this node's wall clock and the store's; positive if this node's is ahead."))
	m.unplaceable, errs[6] = m.meter.Int64ObservableUpDownCounter("emitd.assignment.unplaceable", metric.WithUnit("{assignment}"), metric.WithDescription("Units that no node can run, by reason, reported by the leader."))
	m.unplaceableAge, errs[7] = m.meter.Float64ObservableGauge("emitd.assignment.unplaceable.age", metric.WithUnit("s"), metric.WithDescription("Longest time for which a unit has had no node that can run it, reported by the leader."))
	m.changeTime, errs[8] = m.meter.Float64ObservableGauge("emitd.store.change.duration", metric.WithUnit("s"), metric.WithDescription("Shortest duration of one change in a store that applies the changes of all nodes one after the other."))
	m.changeLimit, errs[9] = m.meter.Float64ObservableGauge("emitd.store.change.limit", metric.WithUnit("s"), metric.WithDescription("Longest duration of one change that the timings and the number of nodes allow, in such a store."))
	m.brake, errs[10] = m.meter.Int64ObservableGauge("emitd.coordinator.brake", metric.WithUnit("{brake}"), metric.WithDescription("1 while many nodes look dead at once and nothing is taken from them, reported by the leader."))
	return errors.Join(errs[:]...)
}

// observe answers collectors until the returned function is called.
func (m *instruments) observe(c *Coordinator) (unregister func()) {
	r, err := m.meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		m.collect(c, o)
		return nil
	}, m.leader, m.term, m.trust, m.nodeCount, m.assignmentCount, m.unplaceable, m.unplaceableAge, m.offset, m.changeTime, m.changeLimit, m.brake)
	if err != nil {
		c.log.Warn("metrics are incomplete", "error", err)
		return func() {}
	}
	return func() { _ = r.Unregister() } // it fails only for a registration that does not exist
}

// collect observes all such metrics. Some are observed only on the leader.
func (m *instruments) collect(c *Coordinator, o metric.Observer) {
	cluster := metric.WithAttributes(m.cluster)
	view := c.published.Load()
	_, _, leading := c.lead.current()
	o.ObserveInt64(m.term, view.Term.Ordinal, cluster)
	if d := m.clockOffset.Load(); d != nil {
		o.ObserveFloat64(m.offset, d.Seconds(), cluster)
	}
	if view.ChangeTime > 0 {
		o.ObserveFloat64(m.changeTime, view.ChangeTime.Seconds(), cluster)
		o.ObserveFloat64(m.changeLimit, view.ChangeTimeLimit.Seconds(), cluster)
	}
	if !leading {
		o.ObserveInt64(m.leader, 0, cluster)
		return
	}
	o.ObserveInt64(m.leader, 1, cluster)
	braked := int64(0)
	if view.Braked {
		braked = 1
	}
	o.ObserveInt64(m.brake, braked, cluster)
	if view.LeaderValidUntil != lease.Never {
		o.ObserveFloat64(m.trust, max(view.LeaderValidUntil.Sub(c.clock()), 0).Seconds(), cluster)
	}
	if n := m.counts.Load(); n != nil {
		for _, s := range []node.State{node.Live, node.Late, node.Draining, node.Deaf} {
			o.ObserveInt64(m.nodeCount, n.nodes[s], cluster, metric.WithAttributes(attribute.String("emitd.node.state", string(s))))
		}
		for _, s := range []daemon.State{daemon.Unassigned, daemon.Assigning, daemon.Active, daemon.Revoking, crashing} {
			o.ObserveInt64(m.assignmentCount, n.units[s], cluster, metric.WithAttributes(attribute.String("emitd.assignment.state", string(s))))
		}
	}
	m.collectUnplaceable(c, view.Unplaced, o)
}

// collectUnplaceable observes the units for which the leader's newest plan found no node.
func (m *instruments) collectUnplaceable(c *Coordinator, all []plan.Unplaced, o metric.Observer) {
	cluster := metric.WithAttributes(m.cluster)
	number := map[plan.Obstacle]int64{}
	for i := range all {
		number[all[i].Obstacle()]++
	}
	for _, why := range plan.Obstacles() {
		o.ObserveInt64(m.unplaceable, number[why], cluster, metric.WithAttributes(attribute.String("emitd.unplaceable.reason", string(why))))
	}
	age := time.Duration(0)
	if now, ok := c.StoreTime(); ok && len(all) > 0 {
		age = max(now.Sub(plan.Oldest(all).Since), 0)
	}
	o.ObserveFloat64(m.unplaceableAge, age.Seconds(), cluster)
}

func (m *instruments) transition(reason string) {
	m.transitions.Add(context.Background(), 1, metric.WithAttributes(m.cluster, attribute.String("emitd.transition.reason", reason)))
}

// recordDuration records a duration, with the type of the error if there is one.
func (m *instruments) recordDuration(h metric.Float64Histogram, d time.Duration, err error, more ...attribute.KeyValue) {
	if err != nil {
		more = append(more, attribute.String("error.type", errorType(err)))
	}
	h.Record(context.Background(), max(d, 0).Seconds(), metric.WithAttributes(append(more, m.cluster)...))
}

func (m *instruments) observed(event string, d time.Duration, err error) {
	m.recordDuration(m.observer, d, err, attribute.String("emitd.observer.event", event))
}

// span records, after the fact, what took from began until now.
func (m *instruments) span(name string, began time.Time, err error, attrs ...attribute.KeyValue) {
	_, s := m.tracer.Start(context.Background(), name, trace.WithTimestamp(began), trace.WithSpanKind(trace.SpanKindInternal),
		trace.WithAttributes(append(attrs, m.cluster)...))
	if err != nil {
		s.RecordError(err)
		s.SetAttributes(attribute.String("error.type", errorType(err)))
		s.SetStatus(codes.Error, err.Error())
	}
	s.End()
}

// errorType returns a short name for the error, out of a fixed set.
func errorType(err error) string {
	var p *panicError
	switch {
	case errors.As(err, &p):
		return "panic"
	case errors.Is(err, context.DeadlineExceeded):
		return "timeout"
	}
	for _, k := range []struct {
		err  error
		name string
	}{
		{storage.ErrTermLost, "term_lost"},
		{storage.ErrStaleSeq, "stale_seq"},
		{storage.ErrNotRegistered, "not_registered"},
		{storage.ErrIDInUse, "id_in_use"},
		{storage.ErrOtherCluster, "other_cluster"},
		{storage.ErrTooManyNodes, "crowded"},
		{storage.ErrStoreChanged, "store_changed"},
		{storage.ErrSchema, "schema"},
		{storage.ErrUnavailable, "unavailable"},
		{storage.ErrFull, "full"},
		{daemon.ErrStale, "stale_generation"},
		{context.Canceled, "canceled"},
	} {
		if errors.Is(err, k.err) {
			return k.name
		}
	}
	return "_OTHER"
}

// isAnswer reports whether the error, or nil, shows that the store is reachable.
func isAnswer(err error) bool {
	return err == nil || errors.Is(err, storage.ErrTermLost) || errors.Is(err, storage.ErrStaleSeq) ||
		errors.Is(err, storage.ErrNotRegistered) || errors.Is(err, storage.ErrIDInUse) || errors.Is(err, storage.ErrOtherCluster) || errors.Is(err, storage.ErrTooManyNodes) ||
		errors.Is(err, storage.ErrStoreChanged) || errors.Is(err, storage.ErrFull) || errors.Is(err, daemon.ErrStale)
}
