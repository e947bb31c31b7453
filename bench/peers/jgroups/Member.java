import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Random;
import java.util.Set;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

import org.jgroups.Address;
import org.jgroups.BytesMessage;
import org.jgroups.JChannel;
import org.jgroups.Message;
import org.jgroups.Receiver;
import org.jgroups.View;
import org.jgroups.protocols.ReliableMulticast;
import org.jgroups.protocols.pbcast.NAKACK2;
import org.jgroups.stack.Protocol;
import org.jgroups.util.MessageBatch;

/**
 * One member of a group, in a process of its own. It speaks the language of base.py: a line of JSON when it is ready, then
 * one line for each that it is told. Messages begin with number (4 bytes), sender (2) and round (2), little-endian.
 */
public class Member implements Receiver {
    static final long PATIENCE_NS = TimeUnit.SECONDS.toNanos(60);
    static final com.sun.management.OperatingSystemMXBean SYSTEM =
        (com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();

    final int at, members, senders, wanted;
    final String mode;
    final boolean joinsLate;
    final JChannel channel;
    final BlockingQueue<String> asked = new LinkedBlockingQueue<>();
    final Semaphore echoed = new Semaphore(0);
    volatile View view;
    Address other;

    // What has come; one lock, taken once for a batch
    final Object lock = new Object();
    long count, late, duplicated, outOfOrder, firstNs, repairsBefore;
    double slowPerS;
    int turn = -1, sizeBytes = 8;
    final long[] next;
    final boolean[] seen;
    final List<Set<Long>> missing = new ArrayList<>();

    volatile boolean sending, working;
    volatile long sent;
    volatile List<long[]> samples = new ArrayList<>();

    Member(String stack, String name, int at, int members, int senders, int wanted, String mode, boolean joinsLate)
            throws Exception {
        this.at = at;
        this.members = members;
        this.senders = senders;
        this.wanted = wanted;
        this.mode = mode;
        this.joinsLate = joinsLate;
        next = new long[members];
        seen = new boolean[members];
        for (int i = 0; i < members; i++)
            missing.add(new HashSet<>());
        channel = new JChannel(stack).name(name).setDiscardOwnMessages(true).setReceiver(this);
    }

    // Receiving

    @Override
    public void viewAccepted(View newView) {
        view = newView;
    }

    @Override
    public void receive(Message message) {
        if (mode.equals("rtt")) {
            echo(message);
            return;
        }
        synchronized (lock) {
            take(message);
        }
    }

    @Override
    public void receive(MessageBatch batch) {
        if (mode.equals("rtt")) {
            for (Message message : batch)
                echo(message);
            return;
        }
        synchronized (lock) {
            for (Message message : batch)
                take(message);
        }
    }

    void echo(Message message) {
        if (at == 0) {
            echoed.release();
            return;
        }
        try {
            channel.send(new BytesMessage(message.getSrc(), message.getArray(), message.getOffset(), message.getLength()));
        } catch (Exception error) {
            fail(error);
        }
    }

    void take(Message message) {
        byte[] data = message.getArray();
        int offset = message.getOffset();
        long number = (data[offset] & 255L) | (data[offset + 1] & 255L) << 8 | (data[offset + 2] & 255L) << 16
            | (data[offset + 3] & 255L) << 24;
        int sender = (data[offset + 4] & 255) | (data[offset + 5] & 255) << 8;
        int round = (data[offset + 6] & 255) | (data[offset + 7] & 255) << 8;
        if (round != turn) {
            late++;
            return;
        }
        if (!seen[sender]) {
            seen[sender] = true;
            if (joinsLate)
                next[sender] = number;
        }
        if (number == next[sender])
            next[sender]++;
        else
            lookClosely(sender, number);
        count++;
        if (firstNs == 0)
            firstNs = System.nanoTime();
        if (slowPerS > 0)
            pause((long) (1e9 / slowPerS));
    }

    void lookClosely(int sender, long number) {
        if (number > next[sender]) {
            for (long gone = next[sender]; gone < number; gone++)
                missing.get(sender).add(gone);
            next[sender] = number + 1;
        } else if (missing.get(sender).remove(number))
            outOfOrder++;
        else
            duplicated++;
    }

    // What it can be told

    void run(int firstTurn, int firstSizeBytes) throws Exception {
        background(this::listen);
        prepare(firstTurn, firstSizeBytes, 0);
        long begunNs = System.nanoTime();
        channel.connect("bench");
        await(() -> view != null && view.size() >= wanted, "the others have not come");
        if (!mode.equals("all"))
            other = theOther();
        say("{\"ready\": true, \"begun_ns\": " + begunNs
            + ", \"promises\": \"each sender's messages once, in order, none lost\"}");
        while (true) {
            String line = asked.take();
            String what = text(line, "do");
            switch (what) {
                case "mark" -> say(mark());
                case "prepare" -> {
                    prepare((int) number(line, "turn", 1), (int) number(line, "size_bytes", 8),
                        number(line, "slow_per_s", 0));
                    say("{}");
                }
                case "go" -> {
                    sending = true;
                    if (line.contains("\"samples\": true"))
                        background(this::sample);
                    long total = (long) number(line, "total", 0);
                    if (at < senders) {
                        working = true;
                        background(() -> send(total));
                    }
                    say("{}");
                }
                case "stop" -> {
                    sending = false;
                    slowPerS = 0;
                    await(() -> !working, "a send has waited for more than 60 s");
                    say("{\"sent\": " + sent + "}");
                }
                case "check" -> say(check(numbers(line)));
                case "rtt" -> say(roundTrips((int) number(line, "size_bytes", 8), number(line, "seconds", 1)));
                default -> throw new IllegalArgumentException(what);
            }
        }
    }

    /** Hear what is said, and end when nobody is there any more. */
    void listen() {
        try (BufferedReader said = new BufferedReader(new InputStreamReader(System.in))) {
            String line;
            while ((line = said.readLine()) != null)
                asked.add(line);
        } catch (IOException error) {
            fail(error);
        }
        Runtime.getRuntime().halt(0);
    }

    Address theOther() {
        for (Address member : view.getMembers())
            if (!member.equals(channel.getAddress()))
                return member;
        return null;
    }

    void prepare(int round, int size, double slow) {
        synchronized (lock) {
            turn = round;
            sizeBytes = size;
            slowPerS = slow;
            count = late = duplicated = outOfOrder = firstNs = 0;
            sent = 0;
            repairsBefore = repairs();
            Arrays.fill(next, 0);
            Arrays.fill(seen, false);
            for (Set<Long> each : missing)
                each.clear();
            samples = new ArrayList<>();
        }
    }

    void send(long total) {
        try {
            ByteBuffer head = ByteBuffer.allocate(8).order(ByteOrder.LITTLE_ENDIAN);
            byte[] filling = new byte[sizeBytes]; // noise, as everywhere
            new Random(1).nextBytes(filling);
            long number = 0;
            while (total == 0 ? sending : number < total) {
                byte[] data = filling.clone();
                head.clear();
                head.putInt((int) number).putShort((short) at).putShort((short) turn);
                System.arraycopy(head.array(), 0, data, 0, 8);
                channel.send(new BytesMessage(other, data));
                sent = ++number;
            }
        } catch (Exception error) {
            fail(error);
        } finally {
            working = false;
        }
    }

    void sample() {
        List<long[]> mine = samples;
        while (sending) {
            mine.add(new long[] {System.nanoTime(), count});
            pause(10_000_000);
        }
    }

    String mark() throws Exception {
        long pages = Long.parseLong(Files.readString(Path.of("/proc/self/statm")).split(" ")[1]);
        return "{\"at_ns\": " + System.nanoTime() + ", \"count\": " + count + ", \"cpu_s\": "
            + SYSTEM.getProcessCpuTime() / 1e9 + ", \"memory_bytes\": " + pages * 4096 + "}";
    }

    long lost(long[] allSent) {
        long lost = 0;
        synchronized (lock) {
            for (int i = 0; i < senders; i++)
                if (i != at && (seen[i] || !joinsLate))
                    lost += missing.get(i).size() + Math.max(0, allSent[i] - next[i]);
        }
        return lost;
    }

    String check(long[] allSent) {
        long untilNs = System.nanoTime() + PATIENCE_NS, had = count;
        while (lost(allSent) > 0 && System.nanoTime() < untilNs) {
            if (count != had) {
                had = count;
                untilNs = System.nanoTime() + PATIENCE_NS;
            }
            pause(5_000_000);
        }
        StringBuilder timeline = new StringBuilder("[");
        for (long[] each : samples)
            timeline.append(timeline.length() > 1 ? ", " : "").append(Arrays.toString(each));
        return "{\"lost\": " + lost(allSent) + ", \"duplicated\": " + duplicated + ", \"out_of_order\": " + outOfOrder
            + ", \"late\": " + late + ", \"first_ns\": " + firstNs + ", \"samples\": " + timeline
            + "], \"extra\": {\"repairs\": " + (repairs() - repairsBefore) + "}}";
    }

    long repairs() {
        for (Protocol protocol : channel.getProtocolStack().getProtocols()) {
            if (protocol instanceof ReliableMulticast reliable)
                return reliable.getXmitResponsesSent();
            if (protocol instanceof NAKACK2 older)
                return older.getXmitResponsesSent();
        }
        return 0;
    }

    String roundTrips(int size, double seconds) throws Exception {
        List<Long> times = new ArrayList<>();
        if (at == 0) {
            long begunNs = System.nanoTime(), warmNs = begunNs + (long) (seconds * 1e8);
            long untilNs = begunNs + (long) (seconds * 1.1e9), startNs;
            while ((startNs = System.nanoTime()) < untilNs) {
                channel.send(new BytesMessage(other, new byte[size]));
                if (!echoed.tryAcquire(60, TimeUnit.SECONDS))
                    throw new IllegalStateException("no echo");
                if (startNs > warmNs)
                    times.add(System.nanoTime() - startNs);
            }
        }
        return "{\"times_ns\": " + times + "}";
    }

    // Small tools

    interface Reached {
        boolean now() throws Exception;
    }

    static void await(Reached reached, String otherwise) throws Exception {
        long untilNs = System.nanoTime() + PATIENCE_NS;
        while (!reached.now()) {
            if (System.nanoTime() > untilNs)
                fail(new IllegalStateException(otherwise));
            pause(1_000_000);
        }
    }

    static void pause(long forNs) {
        try {
            TimeUnit.NANOSECONDS.sleep(forNs);
        } catch (InterruptedException error) {
            fail(error);
        }
    }

    static void background(Runnable work) {
        Thread thread = new Thread(work);
        thread.setDaemon(true);
        thread.start();
    }

    static void fail(Exception error) {
        System.err.println(error);
        Runtime.getRuntime().halt(1);
    }

    static void say(String words) {
        System.out.println(words);
        System.out.flush();
    }

    static String text(String line, String key) {
        Matcher found = Pattern.compile("\"" + key + "\": \"?([^\",}]*)").matcher(line);
        return found.find() ? found.group(1) : "";
    }

    static double number(String line, String key, double otherwise) {
        String found = text(line, key);
        return found.isEmpty() ? otherwise : Double.parseDouble(found);
    }

    static long[] numbers(String line) {
        Matcher found = Pattern.compile("\\[([^\\]]*)\\]").matcher(line);
        if (!found.find() || found.group(1).isBlank())
            return new long[0];
        return Arrays.stream(found.group(1).split(",")).map(String::trim).mapToLong(Long::parseLong).toArray();
    }

    public static void main(String[] args) throws Exception {
        try {
            new Member(args[0], args[1], Integer.parseInt(args[2]), Integer.parseInt(args[3]), Integer.parseInt(args[4]),
                Integer.parseInt(args[5]), args[6], Boolean.parseBoolean(args[7])).run(Integer.parseInt(args[8]),
                    Integer.parseInt(args[9]));
        } catch (Exception error) {
            fail(error);
        }
    }
}
