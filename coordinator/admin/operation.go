package admin

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
)

// operation is one call of the API. Its parameters, its body and its answer are Go types. A call is decoded into these
// types, and the OpenAPI document is made from them and their comments (see openapi_test.go), so the two agree.
type operation struct {
	name         string // identifies it in the document
	method, path string // the path is below root
	summary      string
	in, out      reflect.Type            // of structs; out is nil for an answer that is not made of a type
	messages     map[string]reflect.Type // of an answer that is a stream
	serve        func(*API, http.ResponseWriter, *http.Request) error
	open         bool // needs no role, or decides by itself
	role         Role // that a call needs; empty: read for GET, else operate
}

// authorizing makes an operation decide by itself what its caller may see.
func (o operation) authorizing() operation {
	o.open = true
	return o
}

// forAdmins makes an operation need the role admin.
func (o operation) forAdmins() operation {
	o.role = RoleAdmin
	return o
}

// needs returns what a call needs. Calls that only read need the role read.
func (o operation) needs(r *http.Request) Access {
	need := Access{Role: RoleOperate, Queue: r.PathValue("queue"), Subscription: r.PathValue("subscription")}
	if o.method == http.MethodGet {
		need.Role = RoleRead
	}
	need.Role = cmp.Or(o.role, need.Role)
	return need
}

// statusCoder is an answer whose status is not always 200.
type statusCoder interface{ StatusCode() int }

// call makes an operation of a function.
func call[In, Out any](name, method, path, summary string, f func(*API, context.Context, *In) (*Out, error)) operation {
	params := parametersOf(reflect.TypeFor[In]())
	return operation{
		name: name, method: method, path: path, summary: summary, in: reflect.TypeFor[In](), out: reflect.TypeFor[Out](),
		serve: func(a *API, w http.ResponseWriter, r *http.Request) error {
			in := new(In)
			if err := decode(r, params, reflect.ValueOf(in).Elem()); err != nil {
				return err
			}
			if c, ok := any(in).(interface{ from(*API, *http.Request) }); ok {
				c.from(a, r)
			}
			out, err := f(a, r.Context(), in)
			if err != nil {
				return err
			}
			status := http.StatusOK
			if c, ok := any(out).(interface{ setCookie() *http.Cookie }); ok {
				http.SetCookie(w, c.setCookie())
			}
			if s, ok := any(out).(statusCoder); ok {
				status = s.StatusCode()
			}
			respond(w, status, "application/json", out)
			return nil
		},
	}
}

// get makes an operation that reads.
func get[In, Out any](name, path, summary string, f func(*API, context.Context, *In) (*Out, error)) operation {
	return call(name, http.MethodGet, path, summary, f)
}

// parameter is a field of an operation's input.
type parameter struct {
	name  string
	in    string // "path", "query", "header" or "body"
	field reflect.StructField
}

// parametersOf returns the fields of a struct that have one of the tags path, query, header and body.
func parametersOf(t reflect.Type) []parameter {
	var out []parameter
	for _, f := range reflect.VisibleFields(t) {
		for _, in := range []string{"path", "query", "header", "body"} {
			if name, ok := f.Tag.Lookup(in); ok {
				out = append(out, parameter{name, in, f})
			}
		}
	}
	return out
}

// decode fills in the parameters of a call. A parameter that is not known is refused, because the caller expects an
// effect of it.
func decode(r *http.Request, params []parameter, in reflect.Value) error {
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return badCall("the query of the URL is malformed: %w", err)
	}
	known := map[string]bool{}
	for _, p := range params {
		text := p.field.Tag.Get("default")
		switch p.in {
		case "body":
			if err := decodeBody(r, in.FieldByIndex(p.field.Index).Addr().Interface()); err != nil {
				return err
			}
			continue
		case "path":
			text = r.PathValue(p.name)
		case "header":
			text = r.Header.Get(p.name)
		case "query":
			known[p.name] = true
			switch given := query[p.name]; {
			case p.field.Type == reflect.TypeFor[[]string]():
				in.FieldByIndex(p.field.Index).Set(reflect.ValueOf(given))
				continue
			case len(given) > 1:
				return badCall("%s is given %d times", p.name, len(given))
			case len(given) == 1:
				text = given[0]
			}
		}
		if text == "" {
			continue
		}
		if err := p.set(in.FieldByIndex(p.field.Index), text); err != nil {
			return badCall("%s is %.100q, want %w", p.name, text, err)
		}
	}
	for name := range query {
		if !known[name] {
			return badCall("unknown parameter %.100q; this path has: %s", name, sortedKeys(known))
		}
	}
	return nil
}

// set parses a parameter. The error says what is wanted.
func (p parameter) set(v reflect.Value, text string) error {
	if _, ok := v.Interface().(time.Duration); ok {
		d, err := time.ParseDuration(text)
		if err != nil || d < 0 {
			return errors.New("a duration such as 90s or 1h")
		}
		if most, err := time.ParseDuration(p.field.Tag.Get("max")); err == nil && d > most {
			return fmt.Errorf("at most %s", p.field.Tag.Get("max"))
		}
		v.SetInt(int64(d))
		return nil
	}
	if _, ok := v.Interface().(time.Time); ok {
		at, err := time.Parse(time.RFC3339, text)
		if err != nil {
			return errors.New("a time such as 2030-01-31T09:00:00Z")
		}
		v.Set(reflect.ValueOf(at))
		return nil
	}
	switch v.Kind() {
	case reflect.Pointer: // a parameter whose absence says something
		v.Set(reflect.New(v.Type().Elem()))
		return p.set(v.Elem(), text)
	case reflect.Bool:
		b, err := strconv.ParseBool(text)
		if err != nil {
			return errors.New("true or false")
		}
		v.SetBool(b)
	case reflect.Int, reflect.Int64:
		n, err := strconv.ParseInt(text, 10, 64)
		low, high := p.limits()
		if err != nil || n < low || n > high {
			return fmt.Errorf("a whole number from %d to %d", low, high)
		}
		v.SetInt(n)
	case reflect.String:
		if words, ok := p.field.Tag.Lookup("enum"); ok && !slices.Contains(strings.Split(words, ","), text) {
			return fmt.Errorf("one of %s", words)
		}
		v.SetString(text)
	default:
		panic("admin: a parameter has the type " + v.Type().String())
	}
	return nil
}

// limits returns the bounds of a number.
func (p parameter) limits() (low, high int64) {
	low, high = 0, 1<<62
	if n, err := strconv.ParseInt(p.field.Tag.Get("min"), 10, 64); err == nil {
		low = n
	}
	if n, err := strconv.ParseInt(p.field.Tag.Get("max"), 10, 64); err == nil {
		high = n
	}
	return low, high
}

// longestBody bounds the body of a call.
const longestBody = 64 << 10

// decodeBody decodes a JSON object. It demands the media type, because a page of another origin can send any other
// without asking first.
func decodeBody(r *http.Request, to any) error {
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		return refused(http.StatusUnsupportedMediaType, "the body's Content-Type is %.100q, want application/json", r.Header.Get("Content-Type"))
	}
	text, err := io.ReadAll(http.MaxBytesReader(nil, r.Body, longestBody))
	if tooLong := (*http.MaxBytesError)(nil); errors.As(err, &tooLong) {
		return refused(http.StatusRequestEntityTooLarge, "the body has more than %d bytes", tooLong.Limit)
	}
	if err != nil {
		return badCall("cannot read the body: %w", err)
	}
	d := json.NewDecoder(strings.NewReader(string(text)))
	d.DisallowUnknownFields()
	if err := d.Decode(to); err != nil {
		return badCall("the body is not as expected: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return badCall("the body has more than one JSON value")
	}
	return nil
}
