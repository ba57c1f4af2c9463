// Package amazon is what the sinks for SQS and SNS share: how a message becomes a body and at most ten
// attributes, how a client is configured, and how errors are classified.
package amazon

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"unicode/utf8"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/smithy-go"

	"github.com/emitd/emitd/internal/address"
	"github.com/emitd/emitd/outbox"
	"github.com/emitd/emitd/outbox/sink"
)

// Limits of both services.
const (
	MaxEntries    = 10        // of a batch
	MaxBytes      = 256 << 10 // of a batch, and so of a message
	maxAttributes = 10        // of a message
	maxName       = 256       // bytes of an attribute's name
	Encoding      = sink.Prefix + "encoding"
	Headers       = sink.Prefix + "headers"
)

// Login configures access to the service. The zero value takes everything from the environment, as
// Amazon's tools do.
type Login struct {
	Region    string
	Endpoint  string
	AccessKey string
	SecretKey sink.Secret
}

// Load returns the client's configuration.
func (l Login) Load(ctx context.Context) (aws.Config, error) {
	if l.Endpoint != "" {
		u, err := address.URL(l.Endpoint)
		if err != nil {
			return aws.Config{}, fmt.Errorf("endpoint %w", err)
		}
		if u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.User != nil || u.RawQuery != "" {
			return aws.Config{}, errors.New("endpoint: want http://host:port or https://host:port, without login and parameters")
		}
	}
	if (l.AccessKey == "") != (l.SecretKey == "") {
		return aws.Config{}, errors.New("access_key and secret_key go together")
	}
	opts := []func(*config.LoadOptions) error{config.WithHTTPClient(awshttp.NewBuildableClient().WithTransportOptions(keepConnections))}
	if l.Region != "" {
		opts = append(opts, config.WithRegion(l.Region))
	}
	if l.AccessKey != "" {
		opts = append(opts, config.WithCredentialsProvider(credentials.NewStaticCredentialsProvider(l.AccessKey, string(l.SecretKey), "")))
	}
	cfg, err := config.LoadDefaultConfig(ctx, opts...)
	if err != nil {
		return aws.Config{}, fmt.Errorf("load the configuration of AWS: %w", err)
	}
	if cfg.Region == "" {
		return aws.Config{}, errors.New("no region: set it here, in AWS_REGION or in the profile")
	}
	if l.Endpoint != "" {
		cfg.BaseEndpoint = aws.String(l.Endpoint)
	}
	return cfg, nil
}

// keepConnections keeps the connections of all calls that a relay has in flight open; by default all but ten are
// closed after each call. The larger write buffer sends a batch of small messages with one write.
func keepConnections(t *http.Transport) {
	t.MaxIdleConns, t.MaxIdleConnsPerHost = 1000, 256
	t.WriteBufferSize = 16 << 10
}

// Message is a row in the form that the services accept.
type Message struct {
	Body       string
	Attributes []sink.Header
	Size       int // in bytes, as the services count: body, names, types and values
	Err        error
}

// NewMessage returns the body and attributes of a row. The body is the payload if that is text that XML
// can contain. Otherwise it is the payload's base64, and the attribute emitd-encoding is "base64". An
// empty payload becomes a space, and the attribute is "empty". Headers become attributes if all of them
// can; otherwise they become one attribute, the JSON object emitd-headers.
func NewMessage(d outbox.Delivery, row outbox.Row, limit int) Message {
	m := Message{Body: string(row.Payload)}
	own := sink.MessageHeaders(row)
	const more = 2 // topic and encoding
	m.Attributes = append(sink.StandardHeaders(d, row, more+len(own)), sink.Header{Name: sink.Topic, Value: row.Topic})
	switch {
	case len(row.Payload) == 0:
		m.Body = " "
		m.Attributes = append(m.Attributes, sink.Header{Name: Encoding, Value: "empty"})
	case !text(m.Body):
		m.Body = base64.StdEncoding.EncodeToString(row.Payload)
		m.Attributes = append(m.Attributes, sink.Header{Name: Encoding, Value: "base64"})
	}
	m.fit(own)
	m.Size = len(m.Body)
	for _, a := range m.Attributes {
		m.Size += len(a.Name) + len("String") + len(a.Value)
	}
	if m.Size > limit {
		m.Err = sink.Permanent("the message has %d bytes with its attributes, the limit is %d", m.Size, limit)
	}
	return m
}

// Batches configures how the messages of a delivery are sent.
type Batches struct {
	Parallel int // calls in flight at once
	Bytes    int // of a batch
	Target   func(outbox.Row) string
	// Send makes one call with messages of one target, given by their indexes in the delivery. One error for
	// several messages is an error of the whole call.
	Send func(ctx context.Context, rows []int) []error
}

// Deliver sends the messages of rows. Send must leave out those that have an Err. If a call is refused
// for good, it sends each message of the call alone, to find those that are refused.
func (b Batches) Deliver(ctx context.Context, rows []outbox.Row, messages []Message) []error {
	plan := sink.Plan{
		Parallel: b.Parallel, Rows: MaxEntries, Bytes: b.Bytes,
		Size:   func(i int) int { return messages[i].Size },
		Target: func(i int) string { return b.Target(rows[i]) },
	}
	return sink.Run(ctx, rows, plan, func(ctx context.Context, batch []int) []error {
		errs := b.Send(ctx, batch)
		if len(batch) > 1 && len(errs) == 1 && errors.Is(errs[0], outbox.ErrPermanent) {
			errs = make([]error, len(batch))
			for n := range batch {
				errs[n] = b.Send(ctx, batch[n:n+1])[0]
			}
		}
		return errs
	})
}

// fit adds the message's headers within the limit on attributes. Attributes that do not fit are moved
// into the object emitd-headers.
func (m *Message) fit(own []sink.Header) {
	fits := len(m.Attributes)+len(own) <= maxAttributes
	for _, h := range own {
		fits = fits && named(h.Name) && h.Value != "" && text(h.Value)
	}
	if fits {
		m.Attributes = append(m.Attributes, own...)
		return
	}
	object := map[string]string{}
	for _, h := range own {
		object[h.Name] = h.Value
	}
	for len(m.Attributes) >= maxAttributes { // move the last facts, but not the encoding
		n := len(m.Attributes) - 1
		if m.Attributes[n].Name == Encoding {
			m.Attributes[n-1], m.Attributes[n] = m.Attributes[n], m.Attributes[n-1]
		}
		object[m.Attributes[n].Name] = m.Attributes[n].Value
		m.Attributes = m.Attributes[:n]
	}
	value, err := json.Marshal(object)
	if err != nil {
		panic(fmt.Sprintf("amazon: encode strings: %v", err))
	}
	m.Attributes = append(m.Attributes, sink.Header{Name: Headers, Value: string(value)})
}

// text reports whether the services accept s unchanged: it has only characters of XML 1.0.
func text(s string) bool {
	return utf8.ValidString(s) && strings.IndexFunc(s, func(r rune) bool {
		return r < ' ' && r != '\t' && r != '\n' && r != '\r' || r == 0xfffe || r == 0xffff
	}) < 0
}

// named reports whether name is valid for an attribute.
func named(name string) bool {
	lower := strings.ToLower(name)
	ok := len(name) <= maxName && !strings.HasPrefix(lower, "aws.") && !strings.HasPrefix(lower, "amazon.") &&
		!strings.HasPrefix(name, ".") && !strings.HasSuffix(name, ".") && !strings.Contains(name, "..")
	return ok && strings.IndexFunc(name, func(r rune) bool {
		return !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.", r)
	}) < 0
}

// Group returns the message group of a row: its key if that is a valid group, otherwise the key's base64
// with a prefix. A row without a key is a group of its own.
func Group(row outbox.Row) string {
	if row.Key == "" {
		return row.ID.String()
	}
	plain := len(row.Key) <= 128 && strings.IndexFunc(row.Key, func(r rune) bool { return r <= ' ' || r > '~' }) < 0
	if plain && !strings.HasPrefix(row.Key, "emitd:") {
		return row.Key
	}
	return "emitd:" + digest(row.Key)
}

// The services' errors, by what they mean for a delivery. A denied or KMS error concerns one destination;
// others may still be allowed.
var (
	missing = []string{"QueueDoesNotExist", "AWS.SimpleQueueService.NonExistentQueue", "NotFound", "NotFoundException", "InvalidAddress"}
	busy    = []string{"Throttling", "ThrottlingException", "RequestThrottled", "Throttled", "ThrottledException", "OverLimit", "TooManyRequestsException"}
	login   = []string{
		"ExpiredToken", "ExpiredTokenException", "IncompleteSignature", "InvalidAccessKeyId", "InvalidClientTokenId", "InvalidSecurity",
		"MissingAuthenticationToken", "OptInRequired", "RequestExpired", "SignatureDoesNotMatch", "UnrecognizedClientException",
	}
	denied = []string{"AccessDenied", "AccessDeniedException", "AuthorizationError", "AuthorizationErrorException"}
)

// local reports whether an error concerns one destination, including its encryption key.
func local(code string) bool {
	return has(denied, code) || strings.Contains(strings.ToLower(code), "kms")
}

// Classify returns the kind of an error of a call. If fixed is set, the destination is configured, and an
// error of it means that nothing can be delivered. Otherwise the message chose the destination, and an
// error of it must not hold up other messages. If a call is refused for good, at least one of its
// messages is at fault: the caller repeats it message by message.
func Classify(ctx context.Context, what string, fixed bool, err error) error {
	api, _ := errors.AsType[smithy.APIError](err)
	switch {
	case api == nil && ctx.Err() != nil:
		return fmt.Errorf("%s: not confirmed: %w", what, context.Cause(ctx))
	case api == nil:
		return sink.Down(what, withoutWrapping(err))
	case has(missing, api.ErrorCode()) && !fixed:
		return sink.Missing("%s: %s: %s", what, api.ErrorCode(), api.ErrorMessage())
	case has(login, api.ErrorCode()), has(busy, api.ErrorCode()), status(err) >= 500:
		return sink.Down(what, serviceMessage(api))
	case has(missing, api.ErrorCode()), local(api.ErrorCode()), status(err) == 401, status(err) == 403:
		if fixed {
			return sink.Down(what, serviceMessage(api))
		}
		return fmt.Errorf("%s: %w", what, serviceMessage(api))
	case status(err) >= 400:
		return sink.Permanent("%s: %w", what, serviceMessage(api))
	default:
		return fmt.Errorf("%s: %w", what, serviceMessage(api))
	}
}

// Entry returns the error of a failed entry of a batch.
func Entry(what, code, message string, senderFault bool) error {
	err := fmt.Errorf("%s: %s: %s", what, code, message)
	if senderFault && !has(busy, code) && !local(code) && !has(login, code) {
		return sink.Permanent("%w", err)
	}
	return err
}
