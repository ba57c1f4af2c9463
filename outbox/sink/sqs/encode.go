package sqs

import (
	"bytes"
	"context"
	"net/http"
	"strconv"
	"unicode/utf8"

	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/emitd/emitd/outbox"
	"github.com/emitd/emitd/outbox/sink/internal/amazon"
)

// protocol is the client's protocol, except for calls whose context has a body: that body is sent
// unchanged. The client would encode maps of pointers, ten messages with half a dozen attributes in each
// call, and that takes longer than everything else done for a message.
type protocol struct{ smithyhttp.ClientProtocol }

// body is the context key of an encoded body.
type body struct{}

// SerializeRequest implements [smithyhttp.ClientProtocol].
func (p protocol) SerializeRequest(ctx context.Context, schema *smithy.OperationSchema, in smithy.Serializable, req *smithyhttp.Request) error {
	text, ok := ctx.Value(body{}).([]byte)
	if !ok {
		return p.ClientProtocol.SerializeRequest(ctx, schema, in, req)
	}
	req.Method = http.MethodPost
	if req.URL.Path == "" {
		req.URL.Path = "/"
	}
	req.Header.Set("X-Amz-Target", "AmazonSQS.SendMessageBatch")
	req.Header.Set("Content-Type", "application/x-amz-json-1.0")
	req.Header.Set("X-Amzn-Query-Mode", "true")
	filled, err := req.SetStream(bytes.NewReader(text))
	if err != nil {
		return err
	}
	*req = *filled
	return nil
}

// batch is the body of a call in progress.
type batch struct {
	url  string
	fifo bool
	text []byte
	n    int
}

// perAttribute and perEntry are the approximate sizes of the field names.
const (
	perAttribute = 48
	perEntry     = 160
)

// newBatch starts a body. size and attributes are the totals of its messages.
func newBatch(url string, fifo bool, size, attributes int) *batch {
	size += size/16 + perAttribute*attributes + perEntry*amazon.MaxEntries + len(url)
	return &batch{url: url, fifo: fifo, text: append(make([]byte, 0, size), `{"Entries":[`...)}
}

// add writes a message with the ID n.
func (b *batch) add(n int, row outbox.Row, m amazon.Message) {
	if b.n > 0 {
		b.text = append(b.text, ',')
	}
	b.n++
	b.text = strconv.AppendInt(append(b.text, `{"Id":"`...), int64(n), 10)
	b.quote(`","MessageBody":`, m.Body)
	b.text = append(b.text, `,"MessageAttributes":{`...)
	for i, a := range m.Attributes {
		if i > 0 {
			b.text = append(b.text, ',')
		}
		b.quote("", a.Name)
		b.quote(`:{"DataType":"String","StringValue":`, a.Value)
		b.text = append(b.text, '}')
	}
	b.text = append(b.text, '}')
	if b.fifo {
		b.quote(`,"MessageGroupId":`, amazon.Group(row))
		b.quote(`,"MessageDeduplicationId":`, row.ID.String())
	}
	b.text = append(b.text, '}')
}

// end completes the body and returns it.
func (b *batch) end() []byte {
	b.quote(`],"QueueUrl":`, b.url)
	return append(b.text, '}')
}

// quote writes a JSON string after some text. Invalid UTF-8 becomes replacement characters, as in
// encoding/json.
func (b *batch) quote(before, s string) {
	const hex = "0123456789abcdef"
	text := append(append(b.text, before...), '"')
	from := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c >= ' ' && c < utf8.RuneSelf && c != '"' && c != '\\' {
			i++
			continue
		}
		r, size := utf8.DecodeRuneInString(s[i:])
		escaped := ""
		switch {
		case r == utf8.RuneError && size == 1:
			escaped = `\ufffd`
		case c < ' ':
			escaped = `\u00` + string([]byte{hex[c>>4], hex[c&15]})
		case c < utf8.RuneSelf:
			escaped = `\` + string(r)
		}
		if escaped != "" {
			text = append(append(text, s[from:i]...), escaped...)
			from = i + size
		}
		i += size
	}
	b.text = append(append(text, s[from:]...), '"')
}
