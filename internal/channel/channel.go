// Package channel has what the language leaves out about channels that only tell, by being closed, that something has
// happened.
package channel

// IsClosed reports whether c is closed; a nil channel is not. Nothing may ever be sent on c: IsClosed would receive it.
func IsClosed[T any](c <-chan T) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
