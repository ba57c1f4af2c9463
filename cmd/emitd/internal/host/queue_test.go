package host

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/emitd/emitd/cmd/emitd/internal/config"
	"github.com/emitd/emitd/coordinator/lease"
	"github.com/emitd/emitd/daemon/queue/api"
)

// TestIdleReads: the page on what a queue promises says how often a process looks for queues.
func TestIdleReads(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../../../docs/explanation/queue.md")
	if err != nil {
		t.Fatal(err)
	}
	hourly := func(t lease.Timing) int64 { return int64(time.Hour / t.HeartbeatInterval) }
	figure := fmt.Sprintf("%d an hour with the default profile, %d with `fast`", hourly(lease.Default()), hourly(lease.Fast()))
	if !strings.Contains(string(page), figure) {
		t.Errorf("the page does not say %q", figure)
	}
}

// TestThrottle: what the object store may cost is bounded by the configuration, and told.
func TestThrottle(t *testing.T) {
	t.Parallel()
	o := rig(t, func(c *config.Config, _ *Options) {
		c.Objects.URL, c.Objects.WritesPerDay, c.Objects.ReadsPerMinute = "mem://", 1, 6000
	})
	err := started(t, o, func(ctx context.Context, r *Running) {
		defer http.DefaultClient.CloseIdleConnections()
		var s api.ThrottleStats
		for !s.DailyBudgetExceeded || s.ThrottledWrites == 0 { // the list of queues is the one write; a journal cannot be opened
			if ctx.Err() != nil {
				t.Fatalf("%+v", s)
			}
			if err := json.Unmarshal([]byte(ask(ctx, t, http.DefaultClient, r.URL+"/v1/throttle-stats")), &s); err != nil {
				t.Fatal(err)
			}
		}
		if s.TotalWrites != 1 || s.DailyWriteCount != 1 || s.TotalReads == 0 {
			t.Errorf("%+v", s)
		}
	})
	if err != nil {
		t.Errorf("a clean stop: %v", err)
	}
}
