package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/emitd/emitd/internal/backoff"
	"github.com/emitd/emitd/internal/queue/wire"
	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/queue/client"
)

// benchWait is how long a claim waits for a job. Each client submits before it claims, so there is one
// soon, unless another program claims them, too.
const benchWait = time.Second

// ownCalls makes the calls of emitd's own API.
type ownCalls struct {
	service queue.Service
	queue   string
}

var _ benchCalls = ownCalls{}

func (c ownCalls) submit(ctx context.Context, jobs []queue.Job) error {
	_, err := c.service.Enqueue(ctx, c.queue, jobs)
	return err
}

func (c ownCalls) claim(ctx context.Context, worker string, most int) ([]queue.Claimed, error) {
	return c.service.Claim(ctx, c.queue, queue.ClaimRequest{Worker: worker, Types: []string{benchType}, Max: most, Wait: benchWait})
}

func (c ownCalls) complete(ctx context.Context, worker string, claims []queue.Claimed) error {
	what := make([]queue.Settlement, len(claims))
	for i := range claims {
		what[i] = queue.Settlement{Verb: queue.Complete, ID: claims[i].Job.ID, Token: claims[i].Token, Worker: worker}
	}
	outcomes, err := c.service.Settle(ctx, c.queue, what)
	for i := range outcomes {
		if outcomes[i].Err != nil {
			return outcomes[i].Err
		}
	}
	return err
}

func (c ownCalls) writes(ctx context.Context) (n, epoch int64, ok bool) {
	s, err := c.service.Stats(ctx, c.queue)
	if err != nil {
		return 0, 0, false
	}
	return s.Writes, s.Epoch, true
}

// osqueueCalls makes the calls of osqueue's REST API, to emitd or to an osqueue broker. A call has one job.
type osqueueCalls struct {
	ownCalls // for writes
	http     *http.Client
	base     string
	token    string
}

// newOsqueueCalls makes the calls to the first of the addresses.
func newOsqueueCalls(cfg client.Config, stats queue.Service, clients int) osqueueCalls {
	base := strings.TrimSuffix(cfg.Addresses[0], "/")
	if !strings.Contains(base, "://") {
		scheme := "http://"
		if cfg.TLS != nil {
			scheme = "https://"
		}
		base = scheme + base
	}
	t := &http.Transport{TLSClientConfig: cfg.TLS, MaxIdleConnsPerHost: clients, IdleConnTimeout: time.Minute}
	return osqueueCalls{
		ownCalls: ownCalls{stats, queue.DefaultQueue}, http: &http.Client{Transport: t}, base: base, token: cfg.Token,
	}
}

// post makes a call and decodes its answer into out, unless that is nil.
func (c osqueueCalls) post(ctx context.Context, path string, body, out any) error {
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, c.base+path, bytes.NewReader(text))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/json")
	if c.token != "" {
		r.Header.Set("Authorization", "Bearer "+c.token)
	}
	resp, err := c.http.Do(r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	switch {
	case err != nil:
		return err
	case resp.StatusCode >= http.StatusMultipleChoices:
		return fmt.Errorf("%s: %s: %.200s", path, resp.Status, answer)
	case out == nil:
		return nil
	}
	return json.Unmarshal(answer, out)
}

func (c osqueueCalls) submit(ctx context.Context, jobs []queue.Job) error {
	payload, err := json.Marshal(string(jobs[0].Payload))
	if err != nil {
		return err
	}
	return c.post(ctx, "/v1/jobs", wire.OsqueueSubmit{Payload: payload, Type: jobs[0].Type}, nil)
}

func (c osqueueCalls) claim(ctx context.Context, worker string, _ int) ([]queue.Claimed, error) {
	for until := time.Now().Add(benchWait); ; {
		var out wire.OsqueueClaimed
		err := c.post(ctx, "/v1/jobs/claim", wire.OsqueueClaim{WorkerID: worker, Types: []string{benchType}}, &out)
		if err != nil {
			return nil, err
		}
		if out.JobID != "" {
			return []queue.Claimed{{Job: queue.Info{ID: out.JobID}}}, nil
		}
		if time.Now().After(until) || backoff.Sleep(ctx, time.Millisecond) != nil {
			return nil, ctx.Err()
		}
	}
}

func (c osqueueCalls) complete(ctx context.Context, worker string, claims []queue.Claimed) error {
	return c.post(ctx, "/v1/jobs/"+url.PathEscape(claims[0].Job.ID)+"/complete", wire.OsqueueWorker{WorkerID: worker}, nil)
}
