package queue

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// osqueueFile is osqueue's own layout; it has no version.
type osqueueFile struct {
	Broker          *string      `json:"broker"`
	BrokerHeartbeat float64      `json:"brokerHeartbeat"`
	Jobs            []osqueueJob `json:"jobs"`
	CompletedTotal  *float64     `json:"completedTotal"`
}

type osqueueJob struct {
	ID          string          `json:"id"`
	Status      string          `json:"status"`
	Payload     json.RawMessage `json:"payload"`
	Type        string          `json:"type"`
	Heartbeat   float64         `json:"heartbeat"`
	WorkerID    string          `json:"workerId"`
	CreatedAt   float64         `json:"createdAt"`
	Attempts    int             `json:"attempts"`
	MaxAttempts *int            `json:"maxAttempts"`
}

// ParseOsqueue reads the queue.json of an osqueue broker and returns its jobs in the queue's order,
// with their IDs: submitting them again changes nothing. A job that is in progress there is among
// them, for whoever works on it cannot say so here; its attempts begin anew. Errors are BadRequest
// and name the job; of a file with any, nothing is returned.
func ParseOsqueue(data []byte) ([]Job, error) {
	var f osqueueFile
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields() // what is not understood must not be lost silently
	if err := d.Decode(&f); err != nil {
		return nil, Refuse(BadRequest, "this is no queue.json of osqueue: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, Refuse(BadRequest, "this is no queue.json of osqueue: something follows it")
	}
	if f.Jobs == nil || f.CompletedTotal == nil || *f.CompletedTotal < 0 {
		return nil, Refuse(BadRequest, "this is no queue.json of osqueue: jobs or completedTotal are missing")
	}
	jobs := make([]Job, 0, len(f.Jobs))
	seen := map[string]bool{}
	for i := range f.Jobs {
		j, err := f.Jobs[i].job()
		if err == nil && seen[j.ID] {
			err = errors.New("its id is that of an earlier job")
		}
		if err != nil {
			return nil, Refuse(BadRequest, "jobs[%d] (%.80q): %w", i, f.Jobs[i].ID, err)
		}
		seen[j.ID] = true
		jobs = append(jobs, j)
	}
	return jobs, nil
}

func (o *osqueueJob) job() (Job, error) {
	switch {
	case o.ID == "":
		return Job{}, errors.New("it has no id")
	case o.Status != "unclaimed" && o.Status != "in_progress":
		return Job{}, fmt.Errorf("status is %.20q, want unclaimed or in_progress", o.Status)
	case o.Attempts < 0:
		return Job{}, fmt.Errorf("attempts is %d", o.Attempts)
	case o.MaxAttempts != nil && *o.MaxAttempts < 1:
		return Job{}, fmt.Errorf("maxAttempts is %d", *o.MaxAttempts)
	}
	j := Job{ID: o.ID, Type: o.Type}
	if o.MaxAttempts != nil {
		j.Retry.MaxAttempts = *o.MaxAttempts
	}
	if len(o.Payload) > 0 {
		var compact bytes.Buffer
		if err := json.Compact(&compact, o.Payload); err != nil {
			return Job{}, err
		}
		j.Payload = compact.Bytes()
	}
	set := Settings{}.withDefaults()
	if _, err := set.prepare(&j); err != nil {
		return Job{}, errors.New(err.Message)
	}
	return j, nil
}
