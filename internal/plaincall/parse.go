package plaincall

import (
	"bytes"
	"net/http"
	"net/textproto"
	"net/url"
	"strings"
)

// bufferBytes is the size of a connection's buffer, and so of the largest plain call with its head.
const bufferBytes = 4 << 10

const maxHeaders = 32

// parser parses the calls of one connection. Callers send nearly the same head with each call, so it keeps the text of
// headers for the next one.
type parser struct {
	base    http.Request // what all calls of the connection have
	path    func(string) bool
	header  http.Header
	kept    []keptHeader
	host    string
	content body
	request http.Request
}

// keptHeader is a header of the last call.
type keptHeader struct {
	name, key string // as it was sent, and canonical
	value     [1]string
}

// body is a body that has arrived already.
type body struct{ bytes.Reader }

// Close implements [io.Closer].
func (*body) Close() error { return nil }

var requestLine = []byte("POST /")

// parse parses the call at the beginning of b. It returns its number of bytes, or 0 if b does not begin with a whole
// plain call. The request is valid until the next call of parse.
func (p *parser) parse(b []byte) (*http.Request, int) {
	if !bytes.HasPrefix(b, requestLine) {
		return nil, 0
	}
	line, rest, ok := cutLine(b)
	if !ok {
		return nil, 0
	}
	path, ok := bytes.CutSuffix(line[len(requestLine)-1:], []byte(" HTTP/1.1"))
	if !ok || !plainPath(path) || !p.path(string(path)) {
		return nil, 0
	}
	length, rest, ok := p.parseHeaders(rest)
	if !ok || length > len(rest) {
		return nil, 0
	}
	p.request = p.base
	r := &p.request
	p.content.Reset(rest[:length])
	r.URL = &url.URL{Path: string(path)}
	r.RequestURI, r.Host, r.Header, r.ContentLength = r.URL.Path, p.host, p.header, int64(length)
	if r.Body = &p.content; length == 0 {
		r.Body = http.NoBody
	}
	return r, len(b) - len(rest) + length
}

// parseHeaders parses the headers into p.header. It returns the body's length and what follows the empty line.
func (p *parser) parseHeaders(b []byte) (length int, rest []byte, ok bool) {
	if p.header == nil {
		p.header = http.Header{}
	}
	clear(p.header)
	length, p.host = -1, ""
	for n := 0; n < maxHeaders; n++ {
		var line []byte
		if line, b, ok = cutLine(b); !ok {
			return 0, nil, false
		}
		if len(line) == 0 {
			return length, b, length >= 0 && p.host != ""
		}
		name, value, ok := bytes.Cut(line, []byte(":"))
		if value = bytes.Trim(value, " \t"); !ok || !plainName(name) || !plainValue(value) {
			return 0, nil, false
		}
		if !p.take(n, name, value, &length) {
			return 0, nil, false
		}
	}
	return 0, nil, false
}

// take adds a header. It returns false if the call is not plain because of it.
func (p *parser) take(n int, name, value []byte, length *int) bool {
	h := p.keep(n, name, value)
	switch h.key {
	case "Host":
		if p.host != "" || !plainHost(value) {
			return false
		}
		p.host = h.value[0]
		return true
	case "Content-Length":
		if *length = plainLength(value); *length < 0 {
			return false
		}
	case "Connection":
		if !strings.EqualFold(h.value[0], "keep-alive") {
			return false
		}
	case "Transfer-Encoding", "Trailer", "Te", "Expect", "Upgrade", "Keep-Alive", "Proxy-Connection", "Http2-Settings":
		return false
	}
	if _, twice := p.header[h.key]; twice {
		return false
	}
	p.header[h.key] = h.value[:]
	return true
}

// keep returns the nth header of the call. It reuses that of the last call if it is the same. A handler may have
// changed the value that it was given, so a value is compared before it is used again.
func (p *parser) keep(n int, name, value []byte) *keptHeader {
	if n == len(p.kept) {
		p.kept = append(p.kept, keptHeader{})
	}
	h := &p.kept[n]
	if string(name) != h.name || h.key == "" {
		h.name = string(name)
		h.key = textproto.CanonicalMIMEHeaderKey(h.name)
	}
	if string(value) != h.value[0] {
		h.value[0] = string(value)
	}
	return h
}

// cutLine cuts b behind its first CRLF. A line that ends otherwise is not plain.
func cutLine(b []byte) (line, rest []byte, ok bool) {
	i := bytes.IndexByte(b, '\n')
	if i < 1 || b[i-1] != '\r' {
		return nil, nil, false
	}
	return b[:i-1], b[i+1:], true
}

// plainPath reports whether a path means what it says: no escapes, no query, and no segment that a router would clean.
func plainPath(b []byte) bool {
	for i, c := range b {
		if !isPlain[c] && c != '/' {
			return false
		}
		if c == '/' && i+1 < len(b) && (b[i+1] == '/' || b[i+1] == '.') {
			return false
		}
	}
	return true
}

// plainName reports whether a header's name consists of letters, digits and dashes.
func plainName(b []byte) bool {
	for _, c := range b {
		if !isPlain[c] || c == '.' || c == ':' || c == '~' || c == '_' {
			return false
		}
	}
	return len(b) > 0
}

// plainValue reports whether a header's value is printable ASCII.
func plainValue(b []byte) bool {
	for _, c := range b {
		if c < ' ' || c > '~' {
			return false
		}
	}
	return true
}

// plainHost reports whether a Host header is a name or an address, perhaps with a port.
func plainHost(b []byte) bool {
	for _, c := range b {
		if !isPlain[c] && c != '[' && c != ']' || c == '~' {
			return false
		}
	}
	return len(b) > 0
}

// plainLength returns a decimal number of at most four digits, or -1.
func plainLength(b []byte) int {
	if len(b) == 0 || len(b) > 4 || len(b) > 1 && b[0] == '0' {
		return -1
	}
	n := 0
	for _, c := range b {
		if c < '0' || c > '9' {
			return -1
		}
		n = n*10 + int(c-'0')
	}
	return n
}

// isPlain marks letters, digits and -._~: .
var isPlain = func() (set [256]bool) {
	for _, c := range "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~:" {
		set[c] = true
	}
	return set
}()
