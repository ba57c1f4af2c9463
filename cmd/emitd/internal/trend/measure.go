package trend

import (
	"math"
	"slices"
)

// kind is what the values of a measure are, and how those of several processes are joined.
type kind int

const (
	total   kind = iota // a count at a moment; each process has a part of it
	highest             // a value at a moment that any process may know; the highest counts
	rate                // what happened in a step, shown per second
	spread              // how long things took
)

// measure is one thing that is kept, made from a metric of the process.
type measure struct {
	name   string // in lines
	metric string // in the process's metrics
	kind   kind
	unit   string
	// Labels of the metric: its queue, its subscription, and which series it is.
	queue, subscription, series string
}

const (
	queueLabel        = "queue"
	destinationLabel  = "messaging_destination_name"
	subscriptionLabel = "emitd_outbox_subscription"
)

// measures are all that is kept, in the order in which it is shown.
var measures = []measure{
	{name: "heartbeat.duration", metric: "emitd_node_heartbeat_duration_seconds", kind: spread, unit: "s"},
	{name: "leaderless.duration", metric: "emitd_coordinator_leaderless_duration_seconds", kind: spread, unit: "s"},
	{name: "acknowledge.duration", metric: "emitd_assignment_acknowledge_duration_seconds", kind: spread, unit: "s"},
	{name: "drain.duration", metric: "emitd_assignment_drain_duration_seconds", kind: spread, unit: "s"},
	{name: "unowned.duration", metric: "emitd_assignment_unowned_duration_seconds", kind: spread, unit: "s"},
	{name: "nodes", metric: "emitd_node_count", kind: highest, unit: "{node}", series: "emitd_node_state"},
	{name: "units", metric: "emitd_assignment_count", kind: highest, unit: "{unit}", series: "emitd_assignment_state"},
	{name: "restarts", metric: "emitd_daemon_restarts_total", kind: rate, unit: "{restart}/s"},
	{name: "queue.jobs", metric: "emitd_queue_depth", kind: total, unit: "{job}", queue: queueLabel, series: "emitd_queue_state"},
	{name: "queue.oldest.age", metric: "emitd_queue_oldest_age_seconds", kind: highest, unit: "s", queue: queueLabel},
	{name: "queue.submitted", metric: "messaging_client_sent_messages_total", kind: rate, unit: "{job}/s", queue: destinationLabel},
	{name: "queue.claimed", metric: "messaging_client_consumed_messages_total", kind: rate, unit: "{job}/s", queue: destinationLabel},
	{name: "queue.call.duration", metric: "messaging_client_operation_duration_seconds", kind: spread, unit: "s", queue: destinationLabel, series: "messaging_operation_name"},
	{name: "queue.commit.duration", metric: "emitd_queue_commit_duration_seconds", kind: spread, unit: "s", queue: queueLabel},
	{name: "outbox.pending", metric: "emitd_outbox_pending", kind: highest, unit: "{message}", subscription: subscriptionLabel},
	{name: "outbox.dead", metric: "emitd_outbox_dead", kind: highest, unit: "{message}", subscription: subscriptionLabel},
	{name: "outbox.oldest.age", metric: "emitd_outbox_oldest_age_seconds", kind: highest, unit: "s", subscription: subscriptionLabel},
	{name: "outbox.delivered", metric: "messaging_client_sent_messages_total", kind: rate, unit: "{message}/s", subscription: subscriptionLabel},
	{name: "outbox.delivery.duration", metric: "emitd_outbox_delivery_duration_seconds", kind: spread, unit: "s", subscription: subscriptionLabel},
}

var measured, rank = func() (map[string]*measure, map[string]int) {
	byName, place := map[string]*measure{}, map[string]int{}
	for i := range measures {
		byName[measures[i].name], place[measures[i].name] = &measures[i], i
	}
	return byName, place
}()

// join returns what two processes have measured in the same step together.
func (m *measure) join(a, b Point) Point {
	switch {
	case m.kind == highest:
		a.Plain = max(a.Plain, b.Plain)
	case m.kind != spread:
		a.Plain += b.Plain
	default:
		both := Distribution{slices.Clone(a.Spread.Counts), a.Spread.Sum + b.Spread.Sum}
		for i, n := range b.Spread.Counts {
			both.Counts[i] += n
		}
		a.Spread = &both
	}
	return a
}

// plain returns the value of a point that is no distribution.
func (m *measure) plain(p Point) float64 {
	if m.kind == rate {
		return rounded(p.Plain / Step.Seconds())
	}
	return rounded(p.Plain)
}

// quantile returns the value below which a part of the values lie. Inside of a bucket, values count as evenly spread.
// The value of a single one is exact, and what is above the last bound counts as that bound.
func (d *Distribution) quantile(bounds []float64, part float64) float64 {
	all := d.all()
	if all == 1 {
		return rounded(d.Sum)
	}
	wanted, below := part*float64(all), 0.0
	for i, n := range d.Counts {
		if below+float64(n) < wanted || n == 0 {
			below += float64(n)
			continue
		}
		if i >= len(bounds) {
			break
		}
		low := 0.0
		if i > 0 {
			low = bounds[i-1]
		}
		return rounded(low + (bounds[i]-low)*(wanted-below)/float64(n))
	}
	return bounds[len(bounds)-1]
}

// rounded returns a number with four digits, which is more than a plot shows.
func rounded(v float64) float64 {
	if v == 0 || math.IsInf(v, 0) || math.IsNaN(v) {
		return 0
	}
	scale := math.Pow(10, 3-math.Floor(math.Log10(math.Abs(v))))
	return math.Round(v*scale) / scale
}
