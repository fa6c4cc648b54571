// Command waiters takes one lock with many sessions, by the mutex of etcd's own Go package. The benchmark of the same name runs it.
//
// Each session has a client of its own, as separate processes have: a connection, a lease, one contender. It writes "ready", reads a line to
// begin, and a second line, upon which the first holder gives the lock back and the measurement begins. At its end it writes one line:
// grants, the sum of the holds in nanoseconds, starved sessions, the longest wait in nanoseconds, errors.
package main

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/clientv3"
	"go.etcd.io/etcd/clientv3/concurrency"
)

var (
	endpoint = flag.String("endpoint", "127.0.0.1:2379", "where etcd is")
	name     = flag.String("name", "waiters", "the lock")
	clients  = flag.Int("clients", 100, "how many want it")
	hold     = flag.Duration("hold", 0, "how long each holds it")
	span     = flag.Duration("span", 30*time.Second, "how long to measure")
)

// One contender.
type contender struct {
	// Since when it waits, in nanoseconds from the start; 0 if it does not.
	waits   int64
	grants  int64
	held    int64
	longest int64
}

var (
	start  = time.Now()
	gate   = make(chan struct{})
	begun  int64
	ended  int64
	errors int64
	inside int64
)

func now() int64 { return int64(time.Since(start)) }

func fail(err error) {
	if atomic.AddInt64(&errors, 1) == 1 {
		fmt.Fprintln(os.Stderr, "waiters:", err)
	}
}

func (c *contender) run(ctx context.Context) {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{*endpoint}, Context: ctx})
	if err != nil {
		fail(err)
		return
	}
	defer client.Close()
	session, err := concurrency.NewSession(client, concurrency.WithTTL(10))
	if err != nil {
		fail(err)
		return
	}
	mutex := concurrency.NewMutex(session, *name)
	for atomic.LoadInt64(&ended) == 0 {
		atomic.StoreInt64(&c.waits, now())
		if err := mutex.Lock(ctx); err != nil {
			fail(err)
			return
		}
		granted := now()
		if !atomic.CompareAndSwapInt64(&inside, 0, 1) {
			fail(fmt.Errorf("two holders"))
		}
		<-gate
		if atomic.LoadInt64(&begun) != 0 && atomic.LoadInt64(&ended) == 0 {
			c.waited(granted)
			atomic.AddInt64(&c.grants, 1)
		}
		atomic.StoreInt64(&c.waits, 0)
		since := now()
		if *hold > 0 {
			time.Sleep(*hold)
		}
		atomic.AddInt64(&c.held, now()-since)
		atomic.StoreInt64(&inside, 0)
		if err := mutex.Unlock(ctx); err != nil {
			fail(err)
			return
		}
	}
}

// What it waited inside the window.
func (c *contender) waited(until int64) {
	since := atomic.LoadInt64(&c.waits)
	if first := atomic.LoadInt64(&begun); since < first {
		since = first
	}
	if until-since > atomic.LoadInt64(&c.longest) {
		atomic.StoreInt64(&c.longest, until-since)
	}
}

func main() {
	flag.Parse()
	in := bufio.NewReader(os.Stdin)
	fmt.Println("ready")
	if _, err := in.ReadString('\n'); err != nil {
		os.Exit(1)
	}
	all := make([]contender, *clients)
	for n := range all {
		go all[n].run(context.Background())
	}
	if _, err := in.ReadString('\n'); err != nil {
		os.Exit(1)
	}
	atomic.StoreInt64(&begun, now())
	close(gate)
	time.Sleep(*span)
	atomic.StoreInt64(&ended, 1)
	end := now()
	var grants, held, starved, longest int64
	for n := range all {
		c := &all[n]
		if atomic.LoadInt64(&c.waits) != 0 {
			c.waited(end)
		}
		got := atomic.LoadInt64(&c.grants)
		grants += got
		held += atomic.LoadInt64(&c.held)
		if got == 0 {
			starved++
		}
		if c.longest > longest {
			longest = c.longest
		}
	}
	fmt.Println(grants, held, starved, longest, atomic.LoadInt64(&errors))
}
