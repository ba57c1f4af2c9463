package broker_test

import (
	"errors"
	"maps"
	"strings"
	"testing"

	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/queue/broker"
)

func TestParseOsqueue(t *testing.T) {
	t.Parallel()
	got, err := broker.ParseOsqueue([]byte(`{"broker":"0.0.0.0:8080","brokerHeartbeat":1706000000000,"jobs":[
		{"id":"a","status":"unclaimed","payload":{"x":1},"type":"email:send","createdAt":1706000000000,"attempts":0},
		{"id":"b","status":"in_progress","payload":null,"heartbeat":1,"workerId":"w","createdAt":1,"attempts":2,"maxAttempts":5}
	],"completedTotal":7}`))
	if err != nil || len(got.Jobs) != 2 || len(got.Changed)+len(got.Left) != 0 {
		t.Fatalf("%+v, %v", got, err)
	}
	jobs := got.Jobs
	if j := jobs[0]; j.ID != "a" || j.Type != "email:send" || string(j.Payload) != `{"x":1}` || j.Retry.MaxAttempts != 0 {
		t.Errorf("the first is %+v", j)
	}
	if j := jobs[1]; j.ID != "b" || j.Retry.MaxAttempts != 5 || string(j.Payload) != "null" {
		t.Errorf("the second is %+v", j)
	}
}

func TestParseOsqueueRefuses(t *testing.T) {
	t.Parallel()
	job := func(s string) string {
		return `{"broker":null,"brokerHeartbeat":0,"jobs":[` + s + `],"completedTotal":0}`
	}
	for what, text := range map[string]string{
		"nothing":          ``,
		"another file":     `{"name":"x"}`,
		"two files":        job("") + job(""),
		"no id":            job(`{"status":"unclaimed","payload":1}`),
		"one id twice":     job(`{"id":"a","status":"unclaimed","payload":1},{"id":"a","status":"unclaimed","payload":1}`),
		"an unknown state": job(`{"id":"a","status":"done","payload":1}`),
		"cut short":        job(`{"id":"a"`),
	} {
		if jobs, err := broker.ParseOsqueue([]byte(text)); !errors.Is(err, &queue.Error{Tag: queue.BadRequest}) || jobs != nil {
			t.Errorf("%s: %v, %v", what, jobs, err)
		}
	}
}

// TestParseOsqueueTakesWhatItCan: osqueue accepts any number for maxAttempts and has no limits; one
// job that cannot be imported does not prevent the import of the others.
func TestParseOsqueueTakesWhatItCan(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 65)
	got, err := broker.ParseOsqueue([]byte(`{"jobs":[
		{"id":"less","status":"unclaimed","payload":1,"maxAttempts":-5},
		{"id":"none","status":"unclaimed","payload":1,"maxAttempts":0},
		{"id":"half","status":"unclaimed","payload":1,"maxAttempts":2.5},
		{"id":"many","status":"unclaimed","payload":1,"maxAttempts":1e300},
		{"id":"type","status":"unclaimed","payload":1,"type":"` + long + `"},
		{"id":"` + long + `","status":"unclaimed","payload":1},
		{"id":"good","status":"unclaimed","payload":1,"maxAttempts":5.0}],"completedTotal":0}`))
	if err != nil {
		t.Fatal(err)
	}
	most := map[string]int{}
	for _, j := range got.Jobs {
		most[j.ID] = j.Retry.MaxAttempts
	}
	if want := map[string]int{"less": 0, "none": 0, "half": 3, "many": 10_000, "good": 5}; !maps.Equal(most, want) {
		t.Errorf("attempts %v, want %v", most, want)
	}
	if len(got.Changed) != 4 || got.Changed[0] != `jobs[0] ("less"): maxAttempts is -5: it has the queue's` || got.Changed[2] != `jobs[2] ("half"): maxAttempts is 2.5: it has 3` {
		t.Errorf("changed: %q", got.Changed)
	}
	if len(got.Left) != 2 || !strings.HasPrefix(got.Left[0], `jobs[4] ("type"): `) || !strings.Contains(got.Left[0], "65 bytes, the limit is 64") || !strings.HasPrefix(got.Left[1], "jobs[5]") {
		t.Errorf("left: %q", got.Left)
	}
}
