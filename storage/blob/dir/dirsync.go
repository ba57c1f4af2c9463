package dir

import "sync"

// dirSyncs lets callers that have changed names in one directory share its syncs. While a sync is under way, all further
// callers wait for the next one. A sync covers what was done before it began, so nobody may join the one under way.
//
// The zero value is ready for use.
type dirSyncs struct {
	mu   sync.Mutex
	next map[string]*syncRound // the next sync of each directory of which one is under way; nil: nobody waits for it
}

// syncRound is one sync that has not begun.
type syncRound struct {
	begin chan struct{} // closed when it is the round's turn
	done  chan struct{} // closed at its end; err is valid then
	err   error
}

// sync calls do(path), or waits for another caller's call of it that begins after this one.
func (s *dirSyncs) sync(path string, do func(string) error) error {
	s.mu.Lock()
	round, busy := s.next[path]
	if !busy {
		if s.next == nil {
			s.next = map[string]*syncRound{}
		}
		s.next[path] = nil
		s.mu.Unlock()
		defer s.ended(path)
		return do(path)
	}
	if round != nil {
		s.mu.Unlock()
		<-round.done
		return round.err
	}
	round = &syncRound{begin: make(chan struct{}), done: make(chan struct{})}
	s.next[path] = round
	s.mu.Unlock()
	<-round.begin
	defer s.ended(path)
	defer close(round.done)
	round.err = do(path)
	return round.err
}

// ended lets the next round of a directory begin, if somebody waits for it. Nobody joins that round any more.
func (s *dirSyncs) ended(path string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	round := s.next[path]
	if round == nil {
		delete(s.next, path)
		return
	}
	s.next[path] = nil
	close(round.begin)
}
