// Package amazontest is a server that speaks the part of SQS (JSON) and SNS (query) that sending needs.
// It checks requests as strictly as the real services: limits, names, groups and deduplication IDs.
package amazontest

import (
	"bytes"
	"crypto/md5"
	"encoding/hex"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"

	"github.com/emitd/emitd/outbox/sink/sinktest"
)

// Entry is a message as it was sent.
type Entry struct {
	ID, Body, Group, Dedup string
	Attributes             map[string]string
}

// Server is the fake service.
type Server struct {
	URL string

	server *httptest.Server
	mu     sync.Mutex
	taken  []Entry
	known  map[string]bool // deduplication IDs
	faults map[string]sinktest.Fault
	answer func(w http.ResponseWriter) bool // answers calls instead of the server
	barred string                           // refuse answers calls that name this
	refuse func(w http.ResponseWriter)
	calls  int
	forget bool
}

// New starts a server.
func New(t testing.TB) *Server {
	s := &Server{known: map[string]bool{}}
	s.server = httptest.NewServer(s)
	s.URL = s.server.URL
	t.Cleanup(func() { s.server.CloseClientConnections(); s.server.Close() })
	return s
}

// Fail implements the Fail of a sinktest.Harness.
func (s *Server) Fail(_ *testing.T, f sinktest.Fault, ids []uuid.UUID) {
	if f == sinktest.Down {
		s.server.Close()
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = map[string]sinktest.Fault{}
	for _, id := range ids {
		s.faults[id.String()] = f
	}
}

// Answer makes f answer every call from now on.
func (s *Server) Answer(f func(w http.ResponseWriter) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answer = f
}

// Forbid makes f answer every call about the destination of that name.
func (s *Server) Forbid(name string, f func(w http.ResponseWriter)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.barred, s.refuse = name, f
}

// Forget makes the server accept SQS batches unchecked from now on, and store nothing.
func (s *Server) Forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forget = true
}

// Entries returns the entries that the server has taken.
func (s *Server) Entries() []Entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.taken)
}

// Calls returns how many batches the server has received.
func (s *Server) Calls() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls
}

// Received implements the Received of a sinktest.Harness.
func (s *Server) Received(*testing.T) []sinktest.Taken {
	var out []sinktest.Taken
	for _, e := range s.Entries() {
		key := e.Attributes["emitd-key"]
		var more map[string]string
		if json.Unmarshal([]byte(e.Attributes["emitd-headers"]), &more) == nil && key == "" {
			key = more["emitd-key"]
		}
		out = append(out, sinktest.Taken{ID: e.Attributes["emitd-id"], Key: key})
	}
	return out
}

// failure is an entry that was not taken.
type failure struct {
	ID, Code, Message string
	Sender            bool
}

// ServeHTTP speaks both protocols.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.ContentLength < 0 { // the clients always send a length
		http.Error(w, "a body has a length", http.StatusLengthRequired)
		return
	}
	body := make([]byte, r.ContentLength)
	if _, err := io.ReadFull(r.Body, body); err != nil {
		return
	}
	s.mu.Lock()
	answer, barred, refuse := s.answer, s.barred, s.refuse
	s.mu.Unlock()
	if barred != "" && destined(string(body), barred) {
		refuse(w)
		return
	}
	if answer != nil && answer(w) {
		return
	}
	if target := r.Header.Get("X-Amz-Target"); target != "" {
		s.sqs(w, r, strings.TrimPrefix(target, "AmazonSQS."), body)
		return
	}
	s.sns(w, r, string(body))
}

// destined reports whether the body of a call names a destination, in the format of SQS or SNS.
func destined(body, name string) bool {
	for _, text := range []string{`"QueueName":"` + name + `"`, `/` + name + `"`, "%3A" + name + "&"} {
		if strings.Contains(body, text) {
			return true
		}
	}
	return strings.HasSuffix(body, "%3A"+name)
}

// take takes the entries of a batch for a destination.
func (s *Server) take(r *http.Request, destination string, entries []Entry) (ok []Entry, failed []failure) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls++
	size := 0
	for _, e := range entries {
		size += len(e.Body)
		for name, value := range e.Attributes {
			size += len(name) + len("String") + len(value)
		}
	}
	for _, e := range entries {
		switch why := wrong(e, destination); {
		case why != "":
			failed = append(failed, failure{e.ID, "InvalidParameterValue", why, true})
			continue
		case size > 256<<10:
			failed = append(failed, failure{e.ID, "BatchRequestTooLong", "too long", true})
			continue
		}
		switch s.faults[e.Attributes["emitd-id"]] {
		case sinktest.Refuse:
			failed = append(failed, failure{e.ID, "InvalidMessageContents", "not these", true})
			continue
		case sinktest.Falter:
			failed = append(failed, failure{e.ID, "InternalError", "try again", false})
			continue
		case sinktest.Hang:
			s.mu.Unlock()
			<-r.Context().Done()
			s.mu.Lock()
			continue
		}
		ok = append(ok, e)
		if e.Dedup != "" && s.known[e.Dedup] {
			continue
		}
		s.known[e.Dedup] = true
		s.taken = append(s.taken, e)
	}
	return ok, failed
}

// wrong returns why the real service would refuse an entry, "" if it would not.
func wrong(e Entry, destination string) string {
	fifo := strings.HasSuffix(destination, ".fifo")
	switch {
	case e.Body == "":
		return "empty body"
	case len(e.Attributes) > 10:
		return fmt.Sprintf("%d attributes", len(e.Attributes))
	case fifo != (e.Group != "") || fifo != (e.Dedup != ""):
		return "group and deduplication id belong to FIFO"
	case len(e.Group) > 128 || strings.ContainsFunc(e.Group, func(r rune) bool { return r <= ' ' || r > '~' }):
		return "bad group " + e.Group
	}
	for name, value := range e.Attributes {
		if value == "" || name == "" || strings.ContainsFunc(name, func(r rune) bool {
			return !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.", r)
		}) {
			return fmt.Sprintf("bad attribute %q = %q", name, value)
		}
	}
	return ""
}

func (s *Server) sqs(w http.ResponseWriter, r *http.Request, action string, body []byte) {
	if s.quick(w, action, body) {
		return
	}
	var in struct {
		QueueName, QueueUrl string //nolint:revive // as SQS writes it
		Entries             []struct {
			Id, MessageBody, MessageGroupId, MessageDeduplicationId string //nolint:revive // as SQS writes it
			MessageAttributes                                       map[string]struct{ StringValue string }
		}
	}
	if err := json.Unmarshal(body, &in); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/x-amz-json-1.0")
	if action == "GetQueueUrl" {
		if strings.Contains(in.QueueName, "nowhere") {
			Refuse(w, http.StatusBadRequest, "com.amazonaws.sqs#QueueDoesNotExist", "no such queue")
			return
		}
		_ = json.NewEncoder(w).Encode(map[string]string{"QueueUrl": s.URL + "/1/" + in.QueueName})
		return
	}
	var entries []Entry
	for _, e := range in.Entries {
		one := Entry{ID: e.Id, Body: e.MessageBody, Group: e.MessageGroupId, Dedup: e.MessageDeduplicationId, Attributes: map[string]string{}}
		for name, a := range e.MessageAttributes {
			one.Attributes[name] = a.StringValue
		}
		entries = append(entries, one)
	}
	ok, failed := s.take(r, in.QueueUrl, entries)
	out := map[string][]map[string]any{"Successful": {}, "Failed": {}}
	for _, e := range ok {
		sum := md5.Sum([]byte(e.Body))
		out["Successful"] = append(out["Successful"], map[string]any{"Id": e.ID, "MessageId": uuid.NewString(), "MD5OfMessageBody": hex.EncodeToString(sum[:])})
	}
	for _, f := range failed {
		out["Failed"] = append(out["Failed"], map[string]any{"Id": f.ID, "Code": f.Code, "Message": f.Message, "SenderFault": f.Sender})
	}
	_ = json.NewEncoder(w).Encode(out)
}

// quick accepts a batch after Forget was called. It does as little work as possible, because the sender
// is being measured.
func (s *Server) quick(w http.ResponseWriter, action string, body []byte) bool {
	s.mu.Lock()
	forget := s.forget && action == "SendMessageBatch"
	s.mu.Unlock()
	if !forget {
		return false
	}
	w.Header().Set("Content-Type", "application/x-amz-json-1.0")
	out := append(make([]byte, 0, 1024), `{"Failed":[],"Successful":[`...)
	for n := 0; ; n++ {
		id, rest, more := nextField(body, "Id")
		if !more {
			break
		}
		var text []byte
		if text, body, more = nextField(rest, "MessageBody"); !more {
			return false
		}
		if n > 0 {
			out = append(out, ',')
		}
		sum := md5.Sum(text)
		out = append(append(out, `{"Id":"`...), id...)
		out = hex.AppendEncode(append(out, `","MessageId":"m","MD5OfMessageBody":"`...), sum[:])
		out = append(out, `"}`...)
	}
	_, _ = w.Write(append(out, "]}"...))
	return true
}

// nextField finds the next field of that name with a string value. It returns the value and the text after it.
// No string contains the searched text, because quotes in strings are escaped.
func nextField(text []byte, name string) (value, rest []byte, found bool) {
	_, rest, found = bytes.Cut(text, []byte(`"`+name+`":"`))
	for end := 0; found && end < len(rest); end++ {
		switch rest[end] {
		case '\\':
			end++
		case '"':
			value, rest = rest[:end], rest[end+1:]
			if bytes.IndexByte(value, '\\') < 0 {
				return value, rest, true
			}
			var plain string
			found = json.Unmarshal(append(append([]byte{'"'}, value...), '"'), &plain) == nil
			return []byte(plain), rest, found
		}
	}
	return nil, nil, false
}

// Refuse answers a call of SQS with an error.
func Refuse(w http.ResponseWriter, status int, code, message string) {
	w.Header().Set("Content-Type", "application/x-amz-json-1.0")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]string{"__type": code, "message": message})
}

// RefuseXML answers a call of SNS with an error.
func RefuseXML(w http.ResponseWriter, status int, code, message string) {
	w.WriteHeader(status)
	fmt.Fprintf(w, "<ErrorResponse><Error><Type>Sender</Type><Code>%s</Code><Message>%s</Message></Error></ErrorResponse>", code, message)
}

func (s *Server) sns(w http.ResponseWriter, r *http.Request, body string) {
	form, err := url.ParseQuery(body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	arn := form.Get("TopicArn")
	if strings.Contains(arn, "nowhere") {
		RefuseXML(w, http.StatusNotFound, "NotFound", "Topic does not exist")
		return
	}
	var entries []Entry
	for n := 1; ; n++ {
		p := fmt.Sprintf("PublishBatchRequestEntries.member.%d.", n)
		if form.Get(p+"Id") == "" {
			break
		}
		e := Entry{ID: form.Get(p + "Id"), Body: form.Get(p + "Message"), Group: form.Get(p + "MessageGroupId"), Dedup: form.Get(p + "MessageDeduplicationId"), Attributes: map[string]string{}}
		for a := 1; form.Get(fmt.Sprintf("%sMessageAttributes.entry.%d.Name", p, a)) != ""; a++ {
			e.Attributes[form.Get(fmt.Sprintf("%sMessageAttributes.entry.%d.Name", p, a))] = form.Get(fmt.Sprintf("%sMessageAttributes.entry.%d.Value.StringValue", p, a))
		}
		entries = append(entries, e)
	}
	ok, failed := s.take(r, arn, entries)
	fmt.Fprint(w, "<PublishBatchResponse><PublishBatchResult><Successful>")
	for _, e := range ok {
		fmt.Fprintf(w, "<member><Id>%s</Id><MessageId>%s</MessageId></member>", e.ID, uuid.NewString())
	}
	fmt.Fprint(w, "</Successful><Failed>")
	for _, f := range failed {
		fmt.Fprintf(w, "<member><Id>%s</Id><Code>%s</Code><Message>", f.ID, f.Code)
		_ = xml.EscapeText(w, []byte(f.Message))
		fmt.Fprintf(w, "</Message><SenderFault>%v</SenderFault></member>", f.Sender)
	}
	fmt.Fprint(w, "</Failed></PublishBatchResult></PublishBatchResponse>")
}
