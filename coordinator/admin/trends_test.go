package admin

import (
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/emitd/emitd/internal/admin/fault"
	"github.com/emitd/emitd/storage"
)

// trendsOf has a trend that names what was asked for; none of the queue that there is not.
func trendsOf(_ *http.Request, queue, subscription string) (*Trends, error) {
	if queue == "none" {
		return nil, fault.New(fault.NoQueue, "there is no queue none")
	}
	v := 1.5
	return &Trends{
		At: time.Unix(1_000_000, 0), Step: 10 * time.Second, Nodes: 2, Missing: []string{"c"},
		Trends: []Trend{{Name: "of " + queue + subscription, Unit: "s", Points: []*float64{nil, &v}}},
	}, nil
}

// TestTrends: trends are those of the queue, the subscription or the cluster, each for callers who may read it. A server
// that keeps none says so.
func TestTrends(t *testing.T) {
	inCluster(t, func(t *testing.T, store storage.Store) {
		a := api(t, store, func(c *Config) {
			c.Trends = trendsOf
			c.Authorize = func(_ *http.Request, need Access) error {
				if need == (Access{Role: RoleRead, Queue: "mail"}) {
					return nil
				}
				return errors.New("only mail")
			}
		})
		for path, want := range map[string]int{"/queues/mail/trends": 200, "/queues/reports/trends": 403, "/outbox/mail/trends": 403, "/trends": 403} {
			if w := do(t, a, request(t, "GET", root+path, ""), nil); w.Code != want {
				t.Errorf("%s: %d, want %d", path, w.Code, want)
			}
		}
		var got trendsAnswer
		do(t, a, request(t, "GET", root+"/queues/mail/trends", ""), &got)
		if got.Trends == nil || (*got.Trends)[0].Name != "of mail" || got.StepSeconds != 10 || got.Nodes != 2 || got.Missing[0] != "c" {
			t.Errorf("%+v", got)
		}
		got = trendsAnswer{}
		do(t, api(t, store), request(t, "GET", root+"/trends", ""), &got)
		if got.Trends != nil || got.Missing == nil {
			t.Errorf("a server that keeps none: %+v", got)
		}
	})
}
