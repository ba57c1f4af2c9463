package admin

import (
	"context"
	"time"

	"github.com/emitd/emitd/internal/admin/view"
)

// trendOperations lists the calls about what was measured.
func trendOperations() []operation {
	return []operation{
		get("getTrends", "/trends", "What the cluster has measured in the last hour: heartbeats, hand-overs, nodes and units", (*API).clusterTrends),
		get("getQueueTrends", "/queues/{queue}/trends", "What was measured of a queue in the last hour: jobs, rates, and how long calls took", (*API).queueTrends),
		get("getSubscriptionTrends", "/outbox/{subscription}/trends", "What was measured of a subscription in the last hour: backlog, lag, rates, and how long deliveries took", (*API).subscriptionTrends),
	}
}

// Trends are what was measured in the last hour, for Config.Trends.
type Trends struct {
	At      time.Time     // the end of the last step
	Step    time.Duration // between two points
	Nodes   int           // how many processes have measured it
	Missing []string      // the names of nodes that could not be asked
	Trends  []Trend
}

// Trend is one measure over time.
type Trend struct {
	Name   string     `json:"name"`             // such as queue.jobs
	Series string     `json:"series,omitempty"` // which one of several with that name, such as waiting or p99
	Unit   string     `json:"unit"`             // in UCUM, as metrics have it
	Points []*float64 `json:"points"`           // the oldest first; null where nothing was measured
}

// trendsAnswer is what was measured in the last hour.
type trendsAnswer struct {
	At          view.Time `json:"at"` // when the last point ends, by the clock of the node that answers
	StepSeconds float64   `json:"step_seconds"`
	// Nodes is how many processes have measured it, Missing are the names of those that could not be asked. What a node
	// has measured and nobody has asked for is gone when it ends.
	Nodes   int      `json:"nodes"`
	Missing []string `json:"missing"`
	// Trends is null if the server keeps none.
	Trends *[]Trend `json:"trends"`
}

type clusterTrendsIn struct{ fromRequest }

func (a *API) clusterTrends(_ context.Context, in *clusterTrendsIn) (*trendsAnswer, error) {
	return a.trends(in.fromRequest, "", "")
}

type queueTrendsIn struct {
	queueIn
	fromRequest
}

func (a *API) queueTrends(_ context.Context, in *queueTrendsIn) (*trendsAnswer, error) {
	return a.trends(in.fromRequest, in.Queue, "")
}

type subscriptionTrendsIn struct {
	subscriptionIn
	fromRequest
}

func (a *API) subscriptionTrends(_ context.Context, in *subscriptionTrendsIn) (*trendsAnswer, error) {
	return a.trends(in.fromRequest, "", in.Subscription)
}

// trends returns what was measured of a queue, of a subscription or, if both are empty, of the cluster.
func (a *API) trends(in fromRequest, queue, subscription string) (*trendsAnswer, error) {
	out := &trendsAnswer{Missing: []string{}}
	if a.cfg.Trends == nil {
		return out, nil
	}
	t, err := a.cfg.Trends(in.r, queue, subscription)
	if err != nil {
		return nil, err
	}
	out.At, out.StepSeconds, out.Nodes = view.Time{Time: t.At}, t.Step.Seconds(), t.Nodes
	out.Missing = append(out.Missing, t.Missing...)
	trends := append([]Trend{}, t.Trends...)
	out.Trends = &trends
	return out, nil
}
