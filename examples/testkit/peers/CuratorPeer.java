import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.net.Socket;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.leader.LeaderLatch;
import org.apache.curator.framework.recipes.leader.LeaderLatchListener;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.InterProcessReadWriteLock;
import org.apache.curator.retry.RetryNTimes;
import org.apache.zookeeper.KeeperException;

/** A client of the library Curator, steered by lines: see `ZooKeeperPeer` of the test kit. */
public final class CuratorPeer {
    private static CuratorFramework client;
    private static final Map<String, Mutex> locks = new HashMap<>();
    private static final Map<String, InterProcessMutex> writeLocks = new HashMap<>();
    private static final Map<String, LeaderLatch> latches = new HashMap<>();

    private static final class Mutex extends InterProcessMutex {
        Mutex(String path) {
            super(client, path);
        }

        String node() {
            return getLockPath();
        }

        long fence() throws Exception {
            return client.checkExists().forPath(node()).getCzxid() << 16;
        }
    }

    private static synchronized void say(String words) {
        System.out.println(words);
        System.out.flush();
    }

    /** CuratorPeer HOSTS SESSION_MS */
    public static void main(String[] args) throws Exception {
        int session = Integer.parseInt(args[1]);
        // Retries often, so that a broken connection is soon replaced.
        client = CuratorFrameworkFactory.newClient(args[0], session, session, new RetryNTimes(100, 100));
        client.getConnectionStateListenable().addListener((client, state) -> say("state " + state));
        client.start();
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            obey(line.split(" "));
        }
        client.close();
    }

    private static void obey(String[] words) throws Exception {
        try {
            switch (words[0]) {
                case "acquire" -> acquire(words[1], words[2]);
                case "release" -> {
                    locks.remove(words[1]).release();
                    say("released");
                }
                case "write" -> {
                    InterProcessMutex lock = new InterProcessReadWriteLock(client, words[1]).writeLock();
                    boolean held = lock.acquire(Long.parseLong(words[2]), TimeUnit.MILLISECONDS);
                    writeLocks.put(words[1], lock);
                    say(held ? "held" : "busy");
                }
                case "turns" -> turns(words[1], Integer.parseInt(words[2]), Double.parseDouble(words[3]), words[4]);
                case "latch" -> latch(words[1], words[2]);
                case "leader" -> say("leader " + new LeaderLatch(client, words[1]).getLeader().getId());
                case "unlatch" -> {
                    latches.remove(words[1]).close();
                    say("unlatched");
                }
                default -> throw new IllegalArgumentException(words[0]);
            }
        } catch (KeeperException error) {
            say("error " + error.code());
        }
    }

    private static void acquire(String path, String wait) throws Exception {
        Mutex lock = new Mutex(path);
        if (!wait.equals("-") && !lock.acquire(Long.parseLong(wait), TimeUnit.MILLISECONDS)) {
            say("busy");
            return;
        }
        if (wait.equals("-")) {
            lock.acquire();
        }
        locks.put(path, lock);
        say("held " + lock.node().substring(path.length() + 1) + " " + lock.fence());
    }

    /** Takes the lock COUNT times. Tells the witness when it enters and leaves. */
    private static void turns(String path, int count, double hold, String witness) throws Exception {
        String[] address = witness.split(":");
        try (Socket socket = new Socket(address[0], Integer.parseInt(address[1]))) {
            socket.setTcpNoDelay(true);
            BufferedReader answers = new BufferedReader(new InputStreamReader(socket.getInputStream()));
            tell(socket, answers, "curator " + count);
            for (int turn = 0; turn < count; turn++) {
                Mutex lock = new Mutex(path);
                while (!lock.isAcquiredInThisProcess()) {
                    try {
                        lock.acquire();
                    } catch (KeeperException cut) {
                        // Again, on the next connection.
                    }
                }
                tell(socket, answers, "enter " + lock.fence());
                Thread.sleep((long) (ThreadLocalRandom.current().nextDouble() * 2 * hold));
                tell(socket, answers, "leave");
                try {
                    lock.release();
                } catch (KeeperException cut) {
                    // Curator deletes the node in the background.
                }
            }
        }
        say("done " + count);
    }

    private static void tell(Socket socket, BufferedReader answers, String words) throws Exception {
        socket.getOutputStream().write((words + "\n").getBytes());
        if (!"ok".equals(answers.readLine())) {
            System.exit(1);
        }
    }

    private static void latch(String path, String id) throws Exception {
        LeaderLatch latch = new LeaderLatch(client, path, id);
        latch.addListener(new LeaderLatchListener() {
            @Override
            public void isLeader() {
                say("elected " + id);
            }

            @Override
            public void notLeader() {
                say("deposed " + id);
            }
        });
        latches.put(path, latch);
        latch.start();
        say("latched");
    }
}
