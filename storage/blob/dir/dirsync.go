package dir

import "sync"

// dirSyncs lets callers that have changed names in one directory share its syncs. While a sync is under way, all further
// callers wait for the next one. A sync covers what was done before it began, so nobody may join the one under way.
//
// The zero value is ready for use.
type dirSyncs struct {
	mu   sync.Mutex
	dirs map[string]*dirSync // the directories of which a sync is under way
}

// dirSync is what happens after the sync of a directory that is under way.
type dirSync struct {
	next *syncRound // nil: nobody waits
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
	d, busy := s.dirs[path]
	if !busy {
		if s.dirs == nil {
			s.dirs = map[string]*dirSync{}
		}
		s.dirs[path] = &dirSync{}
		s.mu.Unlock()
		defer s.ended(path)
		return do(path)
	}
	round := d.next
	if round != nil {
		s.mu.Unlock()
		<-round.done
		return round.err
	}
	round = &syncRound{begin: make(chan struct{}), done: make(chan struct{})}
	d.next = round
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
	d := s.dirs[path]
	if d.next == nil {
		delete(s.dirs, path)
		return
	}
	close(d.next.begin)
	d.next = nil
}
