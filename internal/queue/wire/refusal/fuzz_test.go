package refusal_test

import (
	"encoding/json"
	"testing"

	"github.com/emitd/emitd/internal/queue/wire/refusal"
)

// FuzzParse: whatever the body of an answer, the result is a refusal with a tag and a message,
// which can be encoded again and decodes to the same.
func FuzzParse(f *testing.F) {
	f.Add(409, []byte(`{"_tag":"StaleClaim","message":"m","hint":"h","retry_after_ms":5,"holder":"h:1"}`))
	f.Add(503, []byte(`{"_tag":"QueueNotOwner","detail":"d","retry_after_ms":-1}`))
	f.Add(502, []byte("<html>"))
	f.Add(404, []byte(`{"message":"of somebody else"}`))
	f.Fuzz(func(t *testing.T, status int, body []byte) {
		e := refusal.ParseProblem(status, body)
		if e.Tag == "" {
			t.Fatalf("%d %q: no tag", status, body)
		}
		p := refusal.ProblemOf(e)
		if p.Status < 400 || p.Status > 599 {
			t.Fatalf("%d %q: %+v", status, body, p)
		}
		text, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		if again := refusal.ParseProblem(p.Status, text); again.Tag != e.Tag || again.Message != e.Message || again.Holder != e.Holder {
			t.Fatalf("%+v came back as %+v", e, again)
		}
	})
}
