package queue_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/emitd/emitd/daemon/queue"
)

func TestParseOsqueue(t *testing.T) {
	t.Parallel()
	jobs, err := queue.ParseOsqueue([]byte(`{"broker":"0.0.0.0:8080","brokerHeartbeat":1706000000000,"jobs":[
		{"id":"a","status":"unclaimed","payload":{"x":1},"type":"email:send","createdAt":1706000000000,"attempts":0},
		{"id":"b","status":"in_progress","payload":null,"heartbeat":1,"workerId":"w","createdAt":1,"attempts":2,"maxAttempts":5}
	],"completedTotal":7}`))
	if err != nil || len(jobs) != 2 {
		t.Fatalf("%v, %v", jobs, err)
	}
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
		"a long id":        job(`{"id":"` + strings.Repeat("a", queue.MaxID+1) + `","status":"unclaimed","payload":1}`),
		"an unknown state": job(`{"id":"a","status":"done","payload":1}`),
		"a long type":      job(`{"id":"a","status":"unclaimed","payload":1,"type":"` + strings.Repeat("t", queue.MaxType+1) + `"}`),
		"cut short":        job(`{"id":"a"`),
	} {
		if jobs, err := queue.ParseOsqueue([]byte(text)); !errors.Is(err, &queue.Error{Tag: queue.BadRequest}) || jobs != nil {
			t.Errorf("%s: %v, %v", what, jobs, err)
		}
	}
}
