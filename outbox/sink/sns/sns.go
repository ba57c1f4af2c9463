// Package sns is the sink that publishes messages to topics of Amazon SNS, or anything that speaks its
// protocol.
//
// # What is published
//
// Messages are published in batches of up to ten messages and 256 KiB. The message's topic is the ARN of
// the SNS topic, or replaces {topic} in Config.ARN. Body and attributes are as in the sink for SQS: the
// payload or its base64, the facts of package sink and the message's headers. If there would be more than
// ten attributes, the headers are the JSON object emitd-headers. Subscriptions with raw delivery get them
// unchanged.
//
// In a FIFO topic (its ARN ends in .fifo) the message group is the key, or a digest of a key that is
// longer than 128 bytes or not printable ASCII. The deduplication ID is the message's ID: SNS drops
// repetitions within five minutes. A batch has at most one message of a key.
//
// # What an error means
//
//	an entry's sender fault, message too large     permanent
//	an entry's other fault                         another attempt
//	no such topic                                  permanent; an ARN without {topic}: the sink is down
//	not allowed to use the topic or its KMS key    another attempt; an ARN without {topic}: the sink is down
//	no connection, login refused, throttled, 5xx   the sink is down
//	no answer within Config.Timeout                that of a call that hangs
//
// # What is not promised
//
// A fence, because SNS has none. But in a FIFO topic, what a replaced relay publishes again within five
// minutes is dropped.
package sns

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sns"
	"github.com/aws/aws-sdk-go-v2/service/sns/types"

	"github.com/emitd/emitd/outbox"
	"github.com/emitd/emitd/outbox/sink"
	"github.com/emitd/emitd/outbox/sink/internal/amazon"
)

// Config configures the sink. With the zero value each message's topic is the ARN, and the account is
// that of the environment.
type Config struct {
	// Region is that of the service; default: that of the environment or the profile.
	Region string `yaml:"region"`
	// Endpoint replaces Amazon's, e.g. http://localhost:9324.
	Endpoint string `yaml:"endpoint"`
	// AccessKey and SecretKey replace those of the environment, a profile or the machine's role.
	AccessKey string      `yaml:"access_key"`
	SecretKey sink.Secret `yaml:"secret_key"`
	// ARN is the ARN of the topic. It may contain {topic}, e.g.
	// arn:aws:sns:eu-central-1:123456789012:{topic}. Default {topic}.
	ARN string `yaml:"arn"`
	// Timeout bounds one call, including the client's repetitions; default 30 s.
	Timeout time.Duration `yaml:"timeout"`
	// Parallel is how many calls of a delivery may be in flight; default 16.
	Parallel int `yaml:"parallel"`
}

// Sink publishes messages. It is safe for concurrent use.
type Sink struct {
	cfg    Config
	client *sns.Client
}

var _ outbox.Sink = (*Sink)(nil)

// New loads the configuration of AWS. It does not connect, unless it must fetch credentials.
func New(ctx context.Context, cfg Config) (*Sink, error) {
	if cfg.ARN == "" {
		cfg.ARN = "{topic}"
	}
	switch {
	case cfg.Timeout < 0 || cfg.Parallel < 0:
		return nil, errors.New("sns: timeout and parallel must not be negative")
	case !strings.HasPrefix(cfg.ARN, "arn:") && cfg.ARN != "{topic}":
		return nil, fmt.Errorf("sns: arn %q is not a valid ARN", cfg.ARN)
	}
	cfg.Timeout = sink.DurationOr(cfg.Timeout, 30*time.Second)
	if cfg.Parallel == 0 {
		cfg.Parallel = 16
	}
	login, err := amazon.Login{Region: cfg.Region, Endpoint: cfg.Endpoint, AccessKey: cfg.AccessKey, SecretKey: cfg.SecretKey}.Load(ctx)
	if err != nil {
		return nil, fmt.Errorf("sns: %w", err)
	}
	return &Sink{cfg: cfg, client: sns.NewFromConfig(login)}, nil
}

// Close does nothing: connections close when they are idle.
func (s *Sink) Close() error { return nil }

// Deliver publishes the rows.
func (s *Sink) Deliver(ctx context.Context, d outbox.Delivery) []error {
	messages := make([]amazon.Message, len(d.Rows))
	for i, row := range d.Rows {
		messages[i] = amazon.NewMessage(d, row, amazon.MaxBytes)
		if arn := s.target(row); messages[i].Err == nil && !strings.HasPrefix(arn, "arn:") {
			messages[i].Err = sink.Permanent("publish: the topic %.80q is not a valid ARN", arn)
		}
	}
	b := amazon.Batches{Parallel: s.cfg.Parallel, Bytes: amazon.MaxBytes, Target: s.target, Send: func(ctx context.Context, rows []int) []error {
		return s.publish(ctx, d, rows, messages)
	}}
	return b.Deliver(ctx, d.Rows, messages)
}

func (s *Sink) target(row outbox.Row) string {
	return strings.ReplaceAll(s.cfg.ARN, "{topic}", row.Topic)
}

// publish publishes one batch.
func (s *Sink) publish(ctx context.Context, d outbox.Delivery, rows []int, messages []amazon.Message) []error {
	arn := s.target(d.Rows[rows[0]])
	what := fmt.Sprintf("publish to %.120q", arn)
	ctx, cancel := sink.WithDeadline(ctx, sink.TimeoutError{What: "SNS", After: s.cfg.Timeout})
	defer cancel()
	errs := make([]error, len(rows))
	var entries []types.PublishBatchRequestEntry
	for n, i := range rows {
		if errs[n] = messages[i].Err; errs[n] == nil {
			entries = append(entries, entry(n, d.Rows[i], messages[i], strings.HasSuffix(arn, ".fifo")))
		}
	}
	if len(entries) == 0 {
		return errs
	}
	out, err := s.client.PublishBatch(ctx, &sns.PublishBatchInput{TopicArn: aws.String(arn), PublishBatchRequestEntries: entries})
	if err != nil {
		err = amazon.Classify(ctx, what, !strings.Contains(s.cfg.ARN, "{topic}"), err)
		if len(entries) == len(rows) {
			return []error{err}
		}
	}
	confirmed := map[string]bool{}
	failed := map[string]error{}
	if err == nil {
		for _, ok := range out.Successful {
			confirmed[aws.ToString(ok.Id)] = true
		}
		for _, f := range out.Failed {
			failed[aws.ToString(f.Id)] = amazon.Entry(what, aws.ToString(f.Code), aws.ToString(f.Message), f.SenderFault)
		}
		err = fmt.Errorf("%s: the answer does not mention the message", what)
	}
	for _, e := range entries {
		n, _ := strconv.Atoi(*e.Id) // publish wrote it
		switch {
		case failed[*e.Id] != nil:
			errs[n] = failed[*e.Id]
		case !confirmed[*e.Id]:
			errs[n] = err
		}
	}
	return errs
}

// stringType is the type of all attributes.
var stringType = aws.String("String")

func entry(n int, row outbox.Row, m amazon.Message, fifo bool) types.PublishBatchRequestEntry {
	e := types.PublishBatchRequestEntry{
		Id: aws.String(strconv.Itoa(n)), Message: aws.String(m.Body),
		MessageAttributes: make(map[string]types.MessageAttributeValue, len(m.Attributes)),
	}
	for _, a := range m.Attributes {
		e.MessageAttributes[a.Name] = types.MessageAttributeValue{DataType: stringType, StringValue: aws.String(a.Value)}
	}
	if fifo {
		e.MessageGroupId = aws.String(amazon.Group(row))
		e.MessageDeduplicationId = aws.String(row.ID.String())
	}
	return e
}
