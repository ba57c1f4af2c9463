package api_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/emitd/emitd/internal/storage/mem"
	"github.com/emitd/emitd/queue/api"
)

// field is a field of a message by its number: a string or a whole number.
type field struct {
	number protowire.Number
	value  any
}

// message encodes fields by their numbers, without generated code.
func message(fields ...field) string {
	var b []byte
	for _, f := range fields {
		switch v := f.value.(type) {
		case string:
			b = protowire.AppendString(protowire.AppendTag(b, f.number, protowire.BytesType), v)
		case int:
			b = protowire.AppendVarint(protowire.AppendTag(b, f.number, protowire.VarintType), uint64(v))
		}
	}
	return string(b)
}

// fieldsOf decodes a message into texts by number; a repeated field keeps its last value.
func fieldsOf(t *testing.T, body string) map[protowire.Number]string {
	t.Helper()
	out := map[protowire.Number]string{}
	for b := []byte(body); len(b) > 0; {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			t.Fatalf("%q is no message", body)
		}
		b = b[n:]
		switch kind {
		case protowire.VarintType:
			v, m := protowire.ConsumeVarint(b)
			out[number], n = fmt.Sprint(v), m
		case protowire.BytesType:
			v, m := protowire.ConsumeBytes(b)
			out[number], n = string(v), m
		default:
			t.Fatalf("field %d is of type %d", number, kind)
		}
		if n < 0 {
			t.Fatalf("%q breaks off", body)
		}
		b = b[n:]
	}
	return out
}

// TestOsqueueFieldNumbers uses osqueue's service byte by byte, as its published clients do, with a
// real broker. The numbers of fields are part of the interface, and generated code on both sides
// would not notice if they changed.
func TestOsqueueFieldNumbers(t *testing.T) {
	t.Parallel()
	h, err := api.New(startBroker(t, mem.Config{}), api.Options{Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	call := func(method, body string) map[protowire.Number]string {
		t.Helper()
		a := send(h, "POST", "/osqueue.v1.QueueService/"+method, body, "Content-Type", "application/proto", "Connect-Protocol-Version", "1")
		if a.status != 200 {
			t.Fatalf("%s: %d %q", method, a.status, a.body)
		}
		return fieldsOf(t, a.body)
	}
	same := func(what string, got, want map[protowire.Number]string) {
		t.Helper()
		if !maps.Equal(got, want) {
			t.Errorf("%s: %q, want %q", what, got, want)
		}
	}
	id := call("SubmitJob", message(field{1, `{"a":1}`}, field{2, 7}, field{3, "email"}))[1]
	if id == "" {
		t.Fatal("no job id")
	}
	same("nothing to claim", call("ClaimJob", message(field{1, "w"}, field{2, "other"}, field{2, "others"})), map[protowire.Number]string{})
	same("claim", call("ClaimJob", message(field{1, "w"}, field{2, "other"}, field{2, "email"})), map[protowire.Number]string{1: id, 2: `{"a":1}`, 3: "email"})
	same("heartbeat", call("Heartbeat", message(field{1, id}, field{2, "w"})), map[protowire.Number]string{})

	stats := call("GetStats", "") // zero values are omitted
	same("stats", stats, map[protowire.Number]string{1: "1", 3: "1", 4: "127.0.0.1:7070"})
	call("SubmitJob", message(field{1, `null`}))
	list := call("ListJobs", "")
	last := fieldsOf(t, list[1])
	if list[2] != "2" || list[3] != "1" || list[4] != "1" || last[2] != "unclaimed" || last[3] != "null" {
		t.Errorf("list %q, its last job %q", list, last)
	}
	again := call("SubmitJob", message(field{1, "1"}, field{3, "z"}))[1]
	claimed := call("ClaimJob", message(field{1, "second"}, field{2, "z"}))
	if claimed[1] != again {
		t.Fatalf("claimed %q", claimed)
	}
	job := fieldsOf(t, call("ListJobs", "")[1])
	if job[1] != again || job[2] != "in_progress" || job[3] != "1" || job[4] != "z" || job[5] != "second" || len(job[6]) != 13 || job[8] == "" || len(job[9]) != 13 {
		t.Errorf("a job %q with the fields %v", job, slices.Sorted(maps.Keys(job)))
	}
	same("complete", call("CompleteJob", message(field{1, id}, field{2, "w"})), map[protowire.Number]string{})
	if list := call("ListJobs", ""); list[5] != "1" {
		t.Errorf("list %q", list)
	}
	a := send(h, "POST", "/osqueue.v1.QueueService/CompleteJob", message(field{1, again}, field{2, "w"}), "Content-Type", "application/proto")
	if a.status != 409 || !strings.Contains(a.body, "StaleClaim") {
		t.Errorf("a stale complete: %d %q", a.status, a.body)
	}
}
