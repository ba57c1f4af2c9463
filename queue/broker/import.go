package broker

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/emitd/emitd/queue"
)

// osqueueFile is the layout of osqueue's queue.json; it has no version.
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
	MaxAttempts *float64        `json:"maxAttempts"`
}

// Osqueue is the content of a queue.json of osqueue.
type Osqueue struct {
	// Jobs are in the queue's order, with their IDs, so that submitting them again changes
	// nothing.
	Jobs []queue.Job
	// Changed describes the jobs that were changed on import. Left describes the jobs that are
	// not among Jobs, with the reason: osqueue has no limits, and accepts any number for
	// maxAttempts.
	Changed, Left []string
}

// ParseOsqueue parses the queue.json of an osqueue broker. A job that is in progress there is
// returned too, because its worker cannot settle it here; its attempts start at 0. An error is
// BadRequest: the file is not osqueue's, and nothing of it is returned.
func ParseOsqueue(data []byte) (*Osqueue, error) {
	var f osqueueFile
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields() // a field that is not understood must not be lost silently
	if err := d.Decode(&f); err != nil {
		return nil, queue.Refuse(queue.BadRequest, "this is not a queue.json of osqueue: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, queue.Refuse(queue.BadRequest, "this is not a queue.json of osqueue: more data follows the document")
	}
	if f.Jobs == nil || f.CompletedTotal == nil || *f.CompletedTotal < 0 {
		return nil, queue.Refuse(queue.BadRequest, "this is not a queue.json of osqueue: jobs or completedTotal are missing")
	}
	out := &Osqueue{Jobs: make([]queue.Job, 0, len(f.Jobs))}
	set := withDefaults(queue.Settings{})
	seen := map[string]bool{}
	for i := range f.Jobs {
		o := &f.Jobs[i]
		err := o.check()
		if err == nil && seen[o.ID] {
			err = errors.New("its id is that of an earlier job")
		}
		if err != nil {
			return nil, queue.Refuse(queue.BadRequest, "jobs[%d] (%.80q): %w", i, o.ID, err)
		}
		seen[o.ID] = true
		j, changed := o.job()
		if _, err := prepare(&set, &j); err != nil {
			out.Left = append(out.Left, fmt.Sprintf("jobs[%d] (%.80q): %s", i, o.ID, err.Message))
			continue
		}
		if changed != "" {
			out.Changed = append(out.Changed, fmt.Sprintf("jobs[%d] (%.80q): %s", i, o.ID, changed))
		}
		out.Jobs = append(out.Jobs, j)
	}
	return out, nil
}

// check returns an error for values that osqueue does not write.
func (o *osqueueJob) check() error {
	switch {
	case o.ID == "":
		return errors.New("it has no id")
	case o.Status != "unclaimed" && o.Status != "in_progress":
		return fmt.Errorf("status is %.20q, want unclaimed or in_progress", o.Status)
	case o.Attempts < 0:
		return fmt.Errorf("attempts is %d", o.Attempts)
	}
	return nil
}

// job converts a job, and describes what had to change.
func (o *osqueueJob) job() (j queue.Job, changed string) {
	j = queue.Job{ID: o.ID, Type: o.Type}
	switch most := o.MaxAttempts; {
	case most == nil:
	case *most < 1:
		changed = fmt.Sprintf("maxAttempts is %v: it has the queue's", *most)
	default:
		j.Retry.MaxAttempts = int(min(math.Ceil(*most), maxAttempts)) // osqueue begins this many attempts
		if float64(j.Retry.MaxAttempts) != *most {
			changed = fmt.Sprintf("maxAttempts is %v: it has %d", *most, j.Retry.MaxAttempts)
		}
	}
	if len(o.Payload) > 0 {
		var compact bytes.Buffer
		_ = json.Compact(&compact, o.Payload) // valid: it was decoded as JSON
		j.Payload = compact.Bytes()
	}
	return j, changed
}
