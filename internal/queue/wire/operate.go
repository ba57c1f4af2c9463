package wire

import (
	"time"

	"github.com/emitd/emitd/internal/queue/wire/limits"
	"github.com/emitd/emitd/queue"
)

// ActRequest selects the jobs that a command applies to.
type ActRequest struct {
	IDs   []string    `json:"ids,omitempty"`
	State queue.State `json:"state,omitempty"`
	Type  string      `json:"type,omitempty"`
}

// ActResponse says how many jobs a command affected.
type ActResponse struct {
	Count int `json:"count"`
}

// Stats are the counts of a queue.
type Stats struct {
	Queue       string `json:"queue"`
	Shards      int    `json:"shards"`
	Paused      bool   `json:"paused"`
	Waiting     int64  `json:"waiting"`
	Delayed     int64  `json:"delayed"`
	Active      int64  `json:"active"`
	Dead        int64  `json:"dead"`
	OldestAgeMS int64  `json:"oldest_age_ms"`

	Enqueued   int64 `json:"enqueued"`
	Completed  int64 `json:"completed"`
	Failed     int64 `json:"failed"`
	Expired    int64 `json:"expired"`
	Cancelled  int64 `json:"cancelled"`
	Died       int64 `json:"died"`
	Duplicates int64 `json:"duplicates"`

	EnqueueRate  float64 `json:"enqueue_rate"`
	CompleteRate float64 `json:"complete_rate"`

	IndexBytes   int64 `json:"index_bytes"`
	PayloadBytes int64 `json:"payload_bytes"`
	DedupBytes   int64 `json:"dedup_bytes"`
	DedupIDs     int64 `json:"dedup_ids"`

	Writes      int64   `json:"writes"`
	WriteBudget float64 `json:"write_budget"`

	Broker string `json:"broker,omitempty"`
	Epoch  int64  `json:"epoch,omitempty"`
}

// Declaration is the settings with which a queue is declared. An omitted field takes the broker's
// default.
type Declaration struct {
	Name   string `json:"name"`
	Shards int    `json:"shards,omitempty"` // default 1; a declaration does not change it once the queue exists
	// Resharding is in answers only, while the number of shards changes.
	Resharding *Resharding `json:"resharding,omitempty"`
	// Claims is "soft" or "durable": a durable claim is answered after it is stored. The default is that of the node that
	// answers, queue.claims (soft).
	Claims        string `json:"claims,omitempty"`
	VisibilityMS  int64  `json:"visibility_ms,omitempty"`   // default queue.visibility_timeout of the node that answers (30000)
	TTLMS         int64  `json:"ttl_ms,omitempty"`          // default 0: none
	DedupWindowMS int64  `json:"dedup_window_ms,omitempty"` // default queue.dedup_window of the node that answers (600000)
	DedupIDs      int    `json:"dedup_ids,omitempty"`       // in each shard; default 1000000
	MaxJobs       int    `json:"max_jobs,omitempty"`        // in each shard; default 10000000
	MaxBytes      int64  `json:"max_bytes,omitempty"`       // in each shard; default 1073741824
	Retry         *Retry `json:"retry,omitempty"`
}

// DeclarationOf converts a queue's settings.
func DeclarationOf(s queue.Settings) Declaration {
	d := Declaration{
		Name: s.Name, Shards: s.Shards, Claims: s.Claims, VisibilityMS: limits.ToMillis(s.Visibility), TTLMS: limits.ToMillis(s.TTL),
		DedupWindowMS: limits.ToMillis(s.DedupWindow), DedupIDs: s.DedupIDs, MaxJobs: s.MaxJobs, MaxBytes: s.MaxBytes,
	}
	if s.Retry != (queue.Retry{}) {
		d.Retry = RetryOf(s.Retry)
	}
	if x := s.Resharding; x.Stage == queue.Importing {
		d.Resharding = &Resharding{Stage: x.Stage, From: x.Shards, To: s.Shards}
	} else if x.Stage != "" {
		d.Resharding = &Resharding{Stage: x.Stage, From: s.Shards, To: x.Shards}
	}
	return d
}

// Resharding is a change of the number of shards.
type Resharding struct {
	Stage queue.Stage `json:"stage"` // preparing, moving or importing
	From  int         `json:"from"`  // shards
	To    int         `json:"to"`
}

// ReshardRequest asks for another number of shards.
type ReshardRequest struct {
	// Shards is the new number, 1 to 256.
	Shards int `json:"shards"`
}

// Settings converts d to the broker's settings; the broker checks the rest. The error is a refusal.
func (d *Declaration) Settings() (queue.Settings, error) {
	out := queue.Settings{
		Name: d.Name, Shards: d.Shards, Claims: d.Claims, DedupIDs: d.DedupIDs, MaxJobs: d.MaxJobs, MaxBytes: d.MaxBytes,
	}
	if x := d.Resharding; x != nil {
		out.Resharding = queue.Resharding{Stage: x.Stage, Shards: x.To}
		if x.Stage == queue.Importing {
			out.Resharding.Shards = x.From
		}
	}
	var errs [4]error
	out.Visibility, errs[0] = limits.Millis("visibility_ms", d.VisibilityMS)
	out.TTL, errs[1] = limits.Millis("ttl_ms", d.TTLMS)
	out.DedupWindow, errs[2] = limits.Millis("dedup_window_ms", d.DedupWindowMS)
	out.Retry, errs[3] = d.Retry.Policy()
	for _, err := range errs {
		if err != nil {
			return out, err
		}
	}
	if d.Shards < 0 || d.DedupIDs < 0 || d.MaxJobs < 0 || d.MaxBytes < 0 {
		return out, queue.Refuse(queue.BadRequest, "shards, dedup_ids, max_jobs and max_bytes are not negative")
	}
	return out, limits.Job(&queue.Job{Retry: out.Retry})
}

// QueuesResponse lists the declared queues.
type QueuesResponse struct {
	Queues []Declaration `json:"queues"`
}

// StatsOf converts statistics.
func StatsOf(s *queue.Stats) Stats {
	return Stats{
		Queue: s.Queue, Shards: s.Shards, Paused: s.Paused,
		Waiting: s.Waiting, Delayed: s.Delayed, Active: s.Active, Dead: s.Dead, OldestAgeMS: limits.ToMillis(s.OldestAge),
		Enqueued: s.Enqueued, Completed: s.Completed, Failed: s.Failed, Expired: s.Expired,
		Cancelled: s.Cancelled, Died: s.Died, Duplicates: s.Duplicates,
		EnqueueRate: s.EnqueueRate, CompleteRate: s.CompleteRate,
		IndexBytes: s.IndexBytes, PayloadBytes: s.PayloadBytes, DedupBytes: s.DedupBytes, DedupIDs: s.DedupIDs,
		Writes: s.Writes, WriteBudget: s.WriteBudget, Broker: s.Broker, Epoch: s.Epoch,
	}
}

// Stats is the inverse of StatsOf.
func (s *Stats) Stats() *queue.Stats {
	return &queue.Stats{
		Queue: s.Queue, Shards: s.Shards, Paused: s.Paused,
		Waiting: s.Waiting, Delayed: s.Delayed, Active: s.Active, Dead: s.Dead,
		OldestAge: time.Duration(s.OldestAgeMS) * time.Millisecond,
		Enqueued:  s.Enqueued, Completed: s.Completed, Failed: s.Failed, Expired: s.Expired,
		Cancelled: s.Cancelled, Died: s.Died, Duplicates: s.Duplicates,
		EnqueueRate: s.EnqueueRate, CompleteRate: s.CompleteRate,
		IndexBytes: s.IndexBytes, PayloadBytes: s.PayloadBytes, DedupBytes: s.DedupBytes, DedupIDs: s.DedupIDs,
		Writes: s.Writes, WriteBudget: s.WriteBudget, Broker: s.Broker, Epoch: s.Epoch,
	}
}
