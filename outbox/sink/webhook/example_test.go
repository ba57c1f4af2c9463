package webhook_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"

	"github.com/google/uuid"

	"github.com/emitd/emitd/outbox"
	"github.com/emitd/emitd/outbox/sink"
	"github.com/emitd/emitd/outbox/sink/webhook"
)

// A sink that posts each message to a URL, signed. Give it to outbox.NewRelay.
func Example() {
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		fmt.Println(string(body), err, "signed:", r.Header.Get("webhook-signature") != "")
	}))
	defer receiver.Close()
	s, err := webhook.New(context.Background(), webhook.Config{
		URL: receiver.URL, Secrets: []sink.Secret{"whsec_c2VjcmV0IHRoYXQgYm90aCBzaWRlcyBrbm93"},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer s.Close()
	row := outbox.Row{Message: outbox.Message{ID: uuid.New(), Topic: "orders", Payload: []byte(`{"number":7}`)}}
	if errs := s.Deliver(context.Background(), outbox.Delivery{Subscription: "shop", Rows: []outbox.Row{row}}); errs != nil {
		fmt.Println(errs)
	}
	// Output: {"number":7} <nil> signed: true
}
