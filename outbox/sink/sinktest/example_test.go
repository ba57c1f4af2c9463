package sinktest_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/emitd/emitd/outbox/sink/sinktest"
	"github.com/emitd/emitd/outbox/sink/stdout"
)

// The test of a sink of one's own. The suite asks what the receiver has got, and makes it fail.
func Example() {
	testSuite := func(t *testing.T) {
		all := []sinktest.Fault{sinktest.Refuse, sinktest.Falter, sinktest.Hang, sinktest.Down}
		sinktest.Suite{Unsupported: all, New: func(t *testing.T) *sinktest.Harness {
			var receiver bytes.Buffer
			s, err := stdout.New(t.Context(), stdout.Config{Writer: &receiver}) // the sink under test
			if err != nil {
				t.Fatal(err)
			}
			return &sinktest.Harness{
				Sink: s,
				Received: func(t *testing.T) (taken []sinktest.Taken) {
					for line := range strings.Lines(receiver.String()) {
						var m sinktest.Taken
						if err := json.Unmarshal([]byte(line), &m); err != nil {
							t.Fatal(err)
						}
						taken = append(taken, m)
					}
					return taken
				},
				Fail: func(*testing.T, sinktest.Fault, []uuid.UUID) {},
			}
		}}.Run(t)
	}
	_ = testSuite // go test runs it as TestSuite
}
