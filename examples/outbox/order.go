package main

import (
	"encoding/json"
	"errors"

	"github.com/google/uuid"

	"github.com/emitd/emitd/outbox"
)

// order is the business data.
type order struct {
	ID       uuid.UUID `json:"id"`
	Customer string    `json:"customer"`
	Number   int       `json:"number"` // of the customer's orders: 1, 2, 3, …
	Item     string    `json:"item"`
}

// errSoldOut says that no piece is left.
var errSoldOut = errors.New("sold out")

// placed is the message about the order. Its key keeps the orders of one customer in their order.
func (o order) placed() outbox.Message {
	payload, err := json.Marshal(o)
	if err != nil {
		panic("an order is plain text: " + err.Error())
	}
	return outbox.Message{Topic: "orders", Key: o.Customer, Type: "order.placed", Payload: payload}
}
