package sqs

import (
	"context"
	"encoding/json"
	"io"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/schemas"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"
	"github.com/aws/smithy-go/transport/http/protocol/awsjson"

	"github.com/emitd/emitd/outbox"
	"github.com/emitd/emitd/outbox/sink"
	"github.com/emitd/emitd/outbox/sink/internal/amazon"
	"github.com/emitd/emitd/outbox/sink/sinktest"
)

// TestEncode compares an encoded call with the client's own encoding.
func TestEncode(t *testing.T) {
	t.Parallel()
	rows := sinktest.Rows("orders", 10, 3)
	for i, payload := range []string{
		"", "plain", `{"quoted":"\"\\/","n":1}`, "tab\tline\r\nend", "wörld 世界 🙂 \u2028", "\xff\xfe", strings.Repeat(`"`, 1000), "\"Id\":\"0\"", "<&>\x7f",
	} {
		rows[i].Payload = []byte(payload)
		rows[i].Type = strings.Repeat("t\"", i)
		rows[i].TraceParent = "00-\\-01"
	}
	rows[1].Headers = map[string]string{"content-type": "a\tb", "bad name": "\x01\xff"}
	rows[2].Key = "key \x02\xff \"é\""
	d := outbox.Delivery{Subscription: "billing", Epoch: 7, Rows: rows}
	for _, url := range []string{"http://127.0.0.1/1/orders", "http://127.0.0.1/1/orders\".fifo"} {
		var messages []amazon.Message
		var all []int
		plain := &sqs.SendMessageBatchInput{QueueUrl: aws.String(url)}
		for i, row := range rows {
			m := amazon.NewMessage(d, row, amazon.MaxBytes)
			messages, all = append(messages, m), append(all, i)
			plain.Entries = append(plain.Entries, entry(i, row, m, strings.HasSuffix(url, ".fifo")))
		}
		messages[8].Err = sink.Permanent("not this one")
		plain.Entries = slices.Delete(plain.Entries, 8, 9)
		errs := make([]error, len(all))
		entries, text := encode(url, d, all, messages, errs)
		if len(entries) != 9 || errs[8] == nil || errs[9] != nil {
			t.Fatalf("%d entries, errors %v", len(entries), errs)
		}
		own, ownText := request(context.WithValue(t.Context(), body{}, text), t, &sqs.SendMessageBatchInput{})
		theirs, theirText := request(t.Context(), t, plain)
		if own.Method != theirs.Method || own.URL.String() != theirs.URL.String() {
			t.Errorf("%s %v, the client's %s %v", own.Method, own.URL, theirs.Method, theirs.URL)
		}
		if !maps.EqualFunc(own.Header, theirs.Header, slices.Equal[[]string]) {
			t.Errorf("headers %v, the client's %v", own.Header, theirs.Header)
		}
		if !utf8.Valid(ownText) || !reflect.DeepEqual(parsed(t, ownText), parsed(t, theirText)) {
			t.Errorf("%q\nthe client's\n%q", ownText, theirText)
		}
	}
}

// entry returns a message as the client's type.
func entry(n int, row outbox.Row, m amazon.Message, fifo bool) types.SendMessageBatchRequestEntry {
	e := types.SendMessageBatchRequestEntry{Id: &ids[n], MessageBody: aws.String(m.Body), MessageAttributes: map[string]types.MessageAttributeValue{}}
	for _, a := range m.Attributes {
		e.MessageAttributes[a.Name] = types.MessageAttributeValue{DataType: aws.String("String"), StringValue: aws.String(a.Value)}
	}
	if fifo {
		e.MessageGroupId = aws.String(amazon.Group(row))
		e.MessageDeduplicationId = aws.String(row.ID.String())
	}
	return e
}

// request returns the request that a call sends.
func request(ctx context.Context, t *testing.T, in *sqs.SendMessageBatchInput) (*smithyhttp.Request, []byte) {
	t.Helper()
	p := protocol{awsjson.New10(schemas.AmazonSQS)}
	req := smithyhttp.NewStackRequest().(*smithyhttp.Request)
	schema := smithy.NewOperationSchema(schemas.SendMessageBatch, schemas.SendMessageBatchRequest, schemas.SendMessageBatchResult)
	if err := p.SerializeRequest(ctx, schema, in, req); err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(req.GetStream())
	if err != nil {
		t.Fatal(err)
	}
	return req, text
}

func parsed(t *testing.T, text []byte) (v any) {
	t.Helper()
	if err := json.Unmarshal(text, &v); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return v
}

// TestClassifyAnswers checks that only a message that the answer confirms counts as taken, and that a message that
// was not sent keeps its error.
func TestClassifyAnswers(t *testing.T) {
	t.Parallel()
	errs := make([]error, 5)
	errs[0] = sink.Permanent("too large")
	recordResults("send", &sqs.SendMessageBatchOutput{
		Successful: []types.SendMessageBatchResultEntry{{Id: &ids[0]}, {Id: &ids[1]}, {Id: &ids[2]}, {Id: &ids[9]}, {}},
		Failed: []types.BatchResultErrorEntry{
			{Id: &ids[0], Code: aws.String("again")},
			{Id: &ids[2], Code: aws.String("busy")},
			{Id: &ids[3], Code: aws.String("bad"), SenderFault: true},
			{Id: &ids[8]},
			{Id: aws.String("x")},
			{},
		},
	}, errs)
	for n, want := range []string{"too large", "", "busy", "bad", "does not mention"} {
		if (errs[n] == nil) != (want == "") || errs[n] != nil && !strings.Contains(errs[n].Error(), want) {
			t.Errorf("message %d: %v, want %q", n, errs[n], want)
		}
	}
}
