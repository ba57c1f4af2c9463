package config

import (
	"bytes"
	"context"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/emitd/emitd/cmd/emitd/internal/sinks"
	"github.com/emitd/emitd/internal/admin/fault"
	"github.com/emitd/emitd/outbox"
)

// full has every setting of every sink, with a secret wherever one is possible.
const full = `
outbox:
  url: postgres://app:` + secret + `@db/app
  subscriptions:
    - {name: a, sink: {kind: webhook, url: "https://u:` + secret + `@h/private-path?token=` + secret + `", mode: structured, source: /x, secrets: [whsec_` + secret + `], headers: {Authorization: Bearer ` + secret + `}, timeout: 1s, parallel: 2, batch_rows: 3, batch_bytes: 4, down_on: [502, 503], tls: {server_name: x}}}
    - {name: b, sink: {kind: kafka, brokers: ["h:9092"], topic: t, client_id: c, transactional: true, transaction_timeout: 1s, timeout: 2s, linger: 3ms, max_bytes: 4, parallel: 5, compression: zstd, tls: {}, sasl: {mechanism: plain, user: u, password: ` + secret + `}}}
    - {name: c, sink: {kind: nats, url: "nats://u:` + secret + `@a:4222,nats://u:` + secret + `@b:4222", stream: s, domain: d, fence: true, fence_subject: f, timeout: 1s, parallel: 2, name: n, user: u, password: ` + secret + `, token: ` + secret + `, credentials: /c, nkey: /k, tls: {insecure: true}}}
    - {name: d, sink: {kind: rabbitmq, url: "amqp://u:` + secret + `@h/v", exchange: e, routing_key: "{topic}", unroutable: true, pipeline: true, timeout: 1s, heartbeat: 2s, parallel: 3, name: n, tls: {}}}
    - {name: e, sink: {kind: sqs, region: r, endpoint: "http://h", access_key: AK, secret_key: ` + secret + `, queue: q, timeout: 1s, parallel: 2, max_bytes: 3}}
    - {name: f, sink: {kind: sns, region: r, endpoint: "http://h", access_key: AK, secret_key: ` + secret + `, arn: a, timeout: 1s, parallel: 2}}
    - {name: g, sink: {kind: postgres, url: "host=h password=` + secret + `", schema: s, table: t, statement: "select 1", keep: 1h, create: true, timeout: 1s, connections: 2}}
    - {name: h, sink: {kind: queue, queue: q, envelope: true, timeout: 1s, rows: 2, bytes: 3}}
    - {name: i, sink: {kind: stdout, file: /tmp/x}}
`

func TestEverySettingOfEverySink(t *testing.T) {
	t.Parallel()
	text, all := full, []string(nil) // all secrets differ
	for strings.Contains(text, secret) {
		all = append(all, fmt.Sprintf("hunter-%02d", len(all)))
		text = strings.Replace(text, secret, all[len(all)-1], 1)
	}
	l, err := Load(withFile(text))
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[string]bool{}
	for _, s := range l.Outbox.Subscriptions {
		kinds[s.Sink.Kind] = true
		v := reflect.ValueOf(s.Sink.Settings).Elem()
		for _, f := range fields(v.Type()) {
			empty := f.Type.Kind() == reflect.Struct && f.Type.Name() == "TLS" // every key of it is optional
			if v.FieldByIndex(f.Index).IsZero() && !empty {
				t.Errorf("%s.%s was not set", s.Sink.Kind, keyOf(f))
			}
		}
	}
	for _, kind := range sinks.Kinds() {
		if !kinds[kind] {
			t.Errorf("%s was not tried", kind)
		}
	}
	var b bytes.Buffer
	for _, s := range l.Settings() {
		b.WriteString(s.Key + " = " + s.Value + "\n")
	}
	if strings.Contains(b.String(), "hunter") || strings.Contains(b.String(), "private") {
		t.Errorf("a secret is shown:\n%s", b.String())
	}
	for _, want := range []string{
		"outbox.subscriptions[0].sink.url = https://h/***\n", "outbox.subscriptions[0].sink.secrets = [***]\n",
		"outbox.subscriptions[0].sink.headers = {Authorization: ***}\n", "outbox.subscriptions[1].sink.sasl.password = ***\n",
		"outbox.subscriptions[2].sink.url = nats://a:4222/***,nats://b:4222/***\n", "outbox.subscriptions[6].sink.url = ***\n",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("%q is not among\n%s", want, b.String())
		}
	}
	for _, one := range all {
		if got := l.Redact("<" + one + ">"); strings.Contains(got, one) {
			t.Errorf("%s is not hidden elsewhere; it is from\n%s", one, text)
		}
	}
}

// TestAddressesNameTheKind checks the result of a URL or a kind alone.
func TestAddressesNameTheKind(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"stdout": "stdout", "queue": "queue", "sqs": "sqs",
		"https://h/x": "webhook", "http://h": "webhook", "nats://h:4222": "nats", "tls://h:4222": "nats",
		"amqp://u@h/v": "rabbitmq", "amqps://h": "rabbitmq", "postgres://h/d": "postgres", "postgresql://h/d": "postgres",
	} {
		l, err := Load(withFile("outbox:\n  url: sqlite:///x.db\n  subscriptions:\n    - {name: a, sink: \"" + text + "\"}\n"))
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		s := l.Outbox.Subscriptions[0].Sink
		if s.Kind != want {
			t.Errorf("%s is a %s, want %s", text, s.Kind, want)
		}
		if url, ok := field(reflect.TypeOf(s.Settings).Elem(), "url"); ok && strings.Contains(text, ":") {
			if got := reflect.ValueOf(s.Settings).Elem().FieldByIndex(url.Index).String(); got != text {
				t.Errorf("%s: the url is %s", text, got)
			}
		}
	}
}

// TestSubscriptionsFit checks that a subscription that is accepted here is accepted by the package that
// runs it.
func TestSubscriptionsFit(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		`{name: a, sink: stdout}`,
		`{name: a/b.c-d_e, sink: stdout, topics: [x, "y.*", "*"], instances: 64, start: newest, policy: drop, retry: {max_attempts: -1, backoff: 1h, max_backoff: 1h}, deliver_timeout: 1ms, page_timeout: 1ms, parallel: 1, page_rows: 1}`,
		`{name: a, sink: stdout, retry: {max_backoff: 1s}}`,
		`{name: a, sink: stdout, retry: {backoff: 5m}}`,
	} {
		l, err := Load(withFile("outbox:\n  url: sqlite:///x.db\n  subscriptions:\n    - " + text + "\n"))
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		cfg := l.Outbox.Subscriptions[0].RelayConfig()
		cfg.Log, cfg.Sink = nowhere{}, outbox.SinkFunc(nil)
		r, err := outbox.NewRelay(cfg)
		if err != nil {
			t.Errorf("%s passes here, and there: %v", text, err)
			continue
		}
		if err := r.Close(context.Background()); err != nil {
			t.Error(err)
		}
	}
}

// nowhere is a log that is never read.
type nowhere struct{ outbox.Log }

func TestWhereTheOutboxIs(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ text, want string }{
		{"", ""},
		{"store: {url: sqlite:///a.db}\n", "sqlite:///a.db"},
		{"store: {url: postgres://h/d}\n", "postgres://h/d"},
		{"store: {url: s3://b/p}\n", ""},
		{"store: {url: s3://b/p}\noutbox: {url: sqlite:///o.db}\n", "sqlite:///o.db"},
		{"store: {url: sqlite:///a.db}\noutbox: {url: postgres://h/d}\n", "postgres://h/d"},
	} {
		l, err := Load(withFile(c.text))
		if err != nil || l.OutboxURL() != c.want {
			t.Errorf("%q: %q, %v; want %q", c.text, l.OutboxURL(), err, c.want)
		}
	}
	_, err := Load(withFile("store: {url: s3://b/p}\noutbox:\n  subscriptions:\n    - {name: a, sink: stdout}\n"))
	if f := fault.Of(err); len(f) != 1 || f[0].Code != fault.OutboxURL {
		t.Errorf("subscriptions without a database: %v", err)
	}
}
