package api

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"

	"github.com/emitd/emitd/internal/inflight"
	"github.com/emitd/emitd/queue"
)

// Bodies are decompressed in front of the handlers. A body of 32 KB may decompress to a thousand
// times as much, and must be counted while it does. The handlers then read plain bodies of a
// limited size.

// plainBody returns the body as counted plain bytes, and removes its compression from the request's
// headers. A body with another compression stays as it is; the handler refuses it if it cannot read
// it. answer are the headers of the answer.
func plainBody(body io.Reader, r *http.Request, call *inflight.Call, most int64, answer http.Header) io.Reader {
	count := countedBody{src: body, call: call, limit: most, header: answer}
	gzipped := func(header string) bool { return strings.EqualFold(r.Header.Get(header), "gzip") }
	switch {
	case gzipped("Content-Encoding"):
		r.Header = r.Header.Clone()
		r.Header.Del("Content-Encoding")
		r.ContentLength = -1
		count.src = &gunzipReader{src: body, call: call}
	case gzipped("Grpc-Encoding") && strings.HasPrefix(r.Header.Get("Content-Type"), "application/grpc"):
		return &gunzipMessageReader{count: count}
	}
	return &count
}

// unzipCost is about the memory of a decompressor in bytes.
const unzipCost = 48 << 10

var unzippers sync.Pool // of *gzip.Reader

// gunzipReader decompresses a gzip stream.
type gunzipReader struct {
	src  io.Reader
	call *inflight.Call
	zip  *gzip.Reader
	err  error
}

// Read implements [io.Reader].
func (u *gunzipReader) Read(p []byte) (n int, err error) {
	if u.err == nil && u.zip == nil {
		u.err = u.open()
	}
	if u.err != nil {
		return 0, u.err
	}
	if n, u.err = u.zip.Read(p); u.err != nil {
		unzippers.Put(u.zip)
		u.err = gzipRefusal(u.err)
	}
	return n, u.err
}

func (u *gunzipReader) open() error {
	if !u.call.Take(unzipCost) {
		return errTooManyBytes()
	}
	z, _ := unzippers.Get().(*gzip.Reader)
	if z == nil {
		z = new(gzip.Reader)
	}
	if err := z.Reset(u.src); err != nil {
		return gzipRefusal(err)
	}
	u.zip = z
	return nil
}

// gzipRefusal converts an error of a gzip stream into a refusal. io.EOF stays as it is.
func gzipRefusal(err error) error {
	if err == io.EOF { //nolint:errorlint // a reader's own
		return err
	}
	if errors.Is(err, gzip.ErrHeader) || errors.Is(err, gzip.ErrChecksum) || errors.Is(err, io.ErrUnexpectedEOF) {
		return queue.Refuse(queue.BadRequest, "the body is not gzip: %w", err)
	}
	return bodyRefusal(err)
}

// gunzipMessageReader is a gRPC body whose compressed messages are replaced by plain ones. A message
// begins with five bytes: whether it is compressed, and its length.
type gunzipMessageReader struct {
	count countedBody  // counts the body as it was sent
	ready bytes.Buffer // bytes to return next
	pass  int64        // remaining bytes of a plain message, which pass unchanged
}

const messageHead = 5

// Read implements [io.Reader].
func (m *gunzipMessageReader) Read(p []byte) (int, error) {
	if m.ready.Len() == 0 && m.pass == 0 {
		if err := m.next(); err != nil {
			return 0, err
		}
	}
	if m.ready.Len() > 0 {
		return m.ready.Read(p)
	}
	n, err := m.count.Read(p[:min(int64(len(p)), m.pass)])
	if m.pass -= int64(n); err == io.EOF && m.pass > 0 { //nolint:errorlint // a reader's own
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

// next reads the head of a message, and all of a compressed message.
func (m *gunzipMessageReader) next() error {
	var head [messageHead]byte
	if _, err := io.ReadFull(m.count.src, head[:]); err != nil {
		return err
	}
	size := int64(binary.BigEndian.Uint32(head[1:]))
	if head[0]&1 == 0 {
		m.pass = size
		_, err := m.ready.Write(head[:])
		return err
	}
	packed := &io.LimitedReader{R: m.count.src, N: size}
	plain := m.count
	plain.src = &gunzipReader{src: packed, call: m.count.call}
	m.ready = bytes.Buffer{}
	m.ready.Write(head[:])
	if _, err := m.ready.ReadFrom(&plain); err != nil {
		return err
	}
	if packed.N > 0 {
		return queue.Refuse(queue.BadRequest, "a compressed message is followed by %d bytes of something else", packed.N)
	}
	text := m.ready.Bytes()
	text[0] &^= 1
	binary.BigEndian.PutUint32(text[1:], uint32(len(text)-messageHead)) // at most MaxBody
	return nil
}
