package sink_test

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/emitd/emitd/outbox"
	sinkpkg "github.com/emitd/emitd/outbox/sink"
	"github.com/emitd/emitd/outbox/sink/kafka"
	"github.com/emitd/emitd/outbox/sink/sinktest"
)

// TestKafkaSuspectStaysBehind checks that a message which is tried alone, because it shared the batch of a refused one, is
// not committed if an earlier message of its key was not.
func TestKafkaSuspectStaysBehind(t *testing.T) {
	t.Parallel()
	c := newCluster(t, kfake.NumBrokers(2), kfake.SeedTopics(1, "mine", "audit"))
	must(t, c.MoveTopicPartition("mine", 0, 0))
	must(t, c.MoveTopicPartition("audit", 0, 1))
	s := c.open(t, kafka.Config{Transactional: true, Linger: 100 * time.Millisecond, MaxBytes: 10_000})
	must(t, raise(t, s, "0-63", 5))
	rows := sinktest.Rows("mine", 4, 4)
	rows[0].Topic, rows[0].Key = "audit", "x"
	rows[1].Key, rows[1].Payload = "k", bytes.Repeat([]byte("a"), 9640) // a batch of its own
	rows[2].Key = "k"
	rows[3].Key = "j"
	c.fail(t, sinktest.Refuse, []uuid.UUID{rows[3].ID})
	c.failToo(sinktest.Falter, rows[0].ID)
	errs := deliver(t, s, "0-63", 5, rows)
	committed := map[string]bool{}
	for _, r := range c.records(t, "mine") {
		committed[header(r, sinkpkg.ID)] = true
	}
	for i, row := range rows {
		if has := committed[row.ID.String()]; has != (errs[i] == nil) {
			t.Errorf("row %d: %v, committed: %v", i, errs[i], has)
		}
	}
	if committed[rows[2].ID.String()] && !committed[rows[1].ID.String()] {
		t.Error("the second message of the key is committed, and the first is not")
	}
	if errs[1] != nil || errs[2] != nil {
		t.Errorf("the messages of the key failed by that of another topic: %v, %v", errs[1], errs[2])
	}
	if errs[0] == nil || errors.Is(errs[0], outbox.ErrPermanent) || !errors.Is(errs[3], outbox.ErrPermanent) {
		t.Errorf("the bad ones: %v, %v", errs[0], errs[3])
	}
}

// TestKafkaFalteringTopic checks that the messages of a topic which takes none now do not fail those of other topics in
// the same transaction.
func TestKafkaFalteringTopic(t *testing.T) {
	t.Parallel()
	c := newCluster(t, kfake.NumBrokers(2), kfake.SeedTopics(1, "mine", "audit"))
	must(t, c.MoveTopicPartition("mine", 0, 0))
	must(t, c.MoveTopicPartition("audit", 0, 1))
	s := c.open(t, kafka.Config{Transactional: true})
	must(t, raise(t, s, "0-63", 5))
	rows := sinktest.Rows("mine", 12, 4)
	bad := map[int]bool{2: true, 5: true}
	var ids []uuid.UUID
	for i := range bad {
		rows[i].Topic = "audit"
		ids = append(ids, rows[i].ID)
	}
	c.fail(t, sinktest.Falter, ids)
	failed := map[string]bool{}
	for i, err := range deliver(t, s, "0-63", 5, rows) {
		key := rows[i].Key
		switch {
		case bad[i] && (err == nil || errors.Is(err, outbox.ErrSkipped)), !bad[i] && failed[key] && !errors.Is(err, outbox.ErrSkipped), !bad[i] && !failed[key] && err != nil:
			t.Errorf("row %d: %v", i, err)
		}
		failed[key] = key != "" && (failed[key] || bad[i])
	}
}
