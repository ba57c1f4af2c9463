package api

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"github.com/emitd/emitd/internal/queue/wire"
	"github.com/emitd/emitd/internal/queue/wire/limits"
	"github.com/emitd/emitd/queue"
)

// call is one HTTP call that is being answered.
type call struct {
	h   *Handler
	w   http.ResponseWriter
	r   *http.Request
	buf *bytes.Buffer
}

// buffers are reused. This is safe because a body is decoded into copies before its buffer is
// returned.
var buffers = sync.Pool{New: func() any { return new(bytes.Buffer) }}

const maxPooled = 1 << 20

func (c *call) release() {
	if c.buf != nil && c.buf.Cap() <= maxPooled {
		c.buf.Reset()
		buffers.Put(c.buf)
	}
	c.buf = nil
}

// body reads the whole body, within the limits.
func (c *call) body() ([]byte, error) {
	if limit := c.h.limiter.maxBody; c.r.ContentLength > limit {
		return nil, errTooLarge(limit)
	}
	c.buf, _ = buffers.Get().(*bytes.Buffer)
	if _, err := c.buf.ReadFrom(c.r.Body); err != nil {
		return nil, bodyRefusal(err)
	}
	return c.buf.Bytes(), nil
}

// decode decodes the body into v; a body is required.
func (c *call) decode(v any) error {
	b, err := c.body()
	if err != nil {
		return err
	}
	return wire.Decode(b, v)
}

// decodeAny is decode for calls whose body may be empty.
func (c *call) decodeAny(v any) error {
	b, err := c.body()
	if err != nil || len(bytes.TrimSpace(b)) == 0 {
		return err
	}
	return wire.Decode(b, v)
}

// queue returns the name of the queue in the path.
func (c *call) queue() (string, error) {
	name := c.r.PathValue("queue")
	return name, limits.Queue(name)
}

// id returns the job ID in the path.
func (c *call) id() (string, error) {
	id := c.r.PathValue("id")
	return id, limits.ID(id)
}

// Values of headers that nearly all answers have. They are shared, and never changed.
var (
	jsonType = []string{"application/json"}
	nosniff  = []string{"nosniff"}
)

// reply answers 200 with an encoded JSON body.
func (c *call) reply(body []byte) error {
	h := c.w.Header()
	h["Content-Type"] = jsonType
	h["Content-Length"] = []string{strconv.Itoa(len(body))}
	_, _ = c.w.Write(body) // an error means that the client has gone
	return nil
}

// json answers 200 with v.
func (c *call) json(v any) error { return c.reply(encode(v)) }

// append answers 200 with what add appends to a reused buffer.
func (c *call) append(add func(b []byte) []byte) error {
	buf, _ := buffers.Get().(*bytes.Buffer)
	b := add(buf.AvailableBuffer())
	err := c.reply(b)
	if cap(b) <= maxPooled {
		buffers.Put(bytes.NewBuffer(b[:0]))
	}
	return err
}

// nothing answers 204.
func (c *call) nothing() error {
	c.w.WriteHeader(http.StatusNoContent)
	return nil
}

// parameters returns the query parameters. It refuses unknown and repeated ones.
func (c *call) parameters(known ...string) (map[string]string, error) {
	out := make(map[string]string, len(known))
	values := c.r.URL.Query()
	for _, k := range known {
		if v := values[k]; len(v) > 1 {
			return nil, queue.Refuse(queue.BadRequest, "%s is given %d times", k, len(v))
		} else if len(v) == 1 {
			out[k] = v[0]
		}
		delete(values, k)
	}
	for k := range values {
		return nil, queue.Refuse(queue.BadRequest, "unknown parameter %.80q", k).WithHint("known: %s", strings.Join(known, ", "))
	}
	return out, nil
}

// encode returns v as JSON without HTML escapes. v is a body of this package, which always encodes.
func encode(v any) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return []byte("{}")
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

// seconds rounds up to whole seconds, because Retry-After has no fractions.
func seconds(ms int64) string { return strconv.FormatInt((ms+999)/1000, 10) }
