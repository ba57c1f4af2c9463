package wire

import "encoding/json"

// The frequent bodies of osqueue's API. Names and forms are those of its published clients.
type (
	// OsqueueSubmit is the body of POST /v1/jobs.
	OsqueueSubmit struct {
		Payload     json.RawMessage `json:"payload"`
		Type        string          `json:"type"`
		MaxAttempts *int            `json:"maxAttempts"`
	}
	// OsqueueReceipt is the answer to it.
	OsqueueReceipt struct {
		JobID string `json:"jobId"`
	}
	// OsqueueClaim is the body of POST /v1/jobs/claim.
	OsqueueClaim struct {
		WorkerID string   `json:"workerId"`
		Types    []string `json:"types"`
	}
	// OsqueueClaimed is the answer to it. It is empty if no job was claimed.
	OsqueueClaimed struct {
		JobID   string          `json:"jobId,omitempty"`
		Payload json.RawMessage `json:"payload,omitempty"`
		Type    string          `json:"type,omitempty"`
	}
	// OsqueueWorker is the body of heartbeat and complete.
	OsqueueWorker struct {
		WorkerID string `json:"workerId"`
	}
)

// Append appends the body.
func (s OsqueueReceipt) Append(b []byte) []byte {
	o := object{b: append(b, '{')}
	o.name("jobId")
	o.b = appendText(o.b, s.JobID)
	return o.end()
}

// Append appends the body. The payload is JSON already.
func (c OsqueueClaimed) Append(b []byte) []byte {
	o := object{b: append(b, '{')}
	o.text("jobId", c.JobID)
	if len(c.Payload) > 0 {
		o.name("payload")
		o.b = append(o.b, c.Payload...)
	}
	o.text("type", c.Type)
	return o.end()
}
